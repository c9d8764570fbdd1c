# PID 1 of a container: runs one command after another for whoever holds its standard input.
#
# Invariants:
# - Needs bash 4.2 or newer and nothing else of the image.
# - A request is one line of fields without blanks, each printf-%b-escaped: run TOKEN WORKDIR COMMAND [NAME=VALUE...].
#   The command's output goes to standard output, then TOKEN:STATUS and a newline.
# - Nothing outlives its command: after it, every other process of the container is killed. `stop` does so at once, and
#   so does USR1, where a command stopped or killed the process that listens for `stop`.
# - The first 16 characters of every token are those of the first one: a request that a command wrote is not heard.
# - When the input ends, or nothing (not even `beat`) came for $1 seconds, everything is killed and PID 1 exits: a
#   command that ended for that reason has no status.
# - The kernel lets no process of the container kill PID 1; commands are the first choice of the memory killer.
[[ $$ == 1 ]] || exit 71 # anywhere else, "every other process" would be somebody else's
lease_s=$1
ended_by="HUP INT QUIT ILL TRAP ABRT FPE BUS SEGV SYS PIPE TERM XCPU XFSZ VTALRM USR2" # what bash would die of
trap '' $ended_by
trap : USR1                               # ends a `wait`
exec 3<&0 </dev/null 2>/dev/null 4<> <(:) # 4: the token comes when the owner is gone, anything else from a command

heard_the_end() { # TOKEN
    local line
    read -r -t 0.001 -u 4 line && [[ $line == *"$1" ]]
}

sweep() { # TOKEN
    local turns=0
    kill -KILL -1
    while kill -0 -1; do # also zombies, until this shell has reaped them
        heard_the_end "$1" && exit 72
        ((++turns % 500)) || (:) # on a busy machine bash 5.2 misses the end of a child, until it waits for another one
    done
    while read -t 0 -u 4; do
        heard_the_end "$1" && exit 72 # nobody is there to be told how the command ended
    done
}

watch() { # TOKEN
    local line=
    while [[ $line != stop ]]; do
        read -r -t "$lease_s" -u 3 line || {
            echo "$1" >&4
            break
        }
    done
    while :; do # a command that has only begun as well; the sweep ends this
        kill -KILL -1
    done
}

run() {
    local token=$1 workdir command name status
    printf -v workdir %b "$2"
    printf -v command %b "$3"
    shift 3
    watch "$token" >/dev/null &
    (
        trap - $ended_by USR1
        cd "$workdir" || { mkdir -p "$workdir" && cd "$workdir"; }
        for name; do
            printf -v name %b "$name"
            export "${name?}"
        done
        echo 500 >/proc/self/oom_score_adj
        exec bash -c "$command" 2>&1 3<&- 4<&-
    ) &
    local child=$!
    wait "$child"
    status=$?
    if kill -0 "$child"; then # USR1 came, and not the end of it
        kill -KILL -1
        wait "$child"
        status=$?
    fi
    sweep "$token"
    wait
    printf '%s:%d\n' "$token" "$status"
}

key=
while read -r -t "$lease_s" -u 3 -a request; do
    [[ ${request[0]} == run && ${request[1]:0:16} == "${key:=${request[1]:0:16}}" ]] && run "${request[@]:1}"
done
kill -KILL -1
