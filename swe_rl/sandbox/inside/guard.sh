# PID 1 of a container: runs one command after another for whoever holds its standard input.
#
# Invariants:
# - Needs bash 4.2 or newer and nothing else of the image.
# - A request is one line of fields without blanks, each printf-%b-escaped: run TOKEN WORKDIR COMMAND [NAME=VALUE...].
#   The command's output goes to standard output, then TOKEN:STATUS and a newline.
# - Nothing outlives its command: after it, every other process of the container is killed. `stop` does so at once.
# - When the input ends, or nothing (not even `beat`) came for $1 seconds, everything is killed and PID 1 exits: a
#   command that ended for that reason has no status.
# - The kernel lets no process of the container kill PID 1; commands are the first choice of the memory killer.
[[ $$ == 1 ]] || exit 71 # anywhere else, "every other process" would be somebody else's
lease_s=$1
ended_by="HUP INT QUIT ILL TRAP ABRT FPE BUS SEGV SYS PIPE TERM XCPU XFSZ VTALRM USR1 USR2" # what bash would die of
trap '' $ended_by
exec 3<&0 </dev/null 2>/dev/null 4<> <(:) # 4: a line comes when the owner is gone

sweep() {
    kill -KILL -1
    while kill -0 -1; do # also zombies, until this shell has reaped them
        read -r -t 0.001 -u 4 && exit 72
    done
    read -t 0 -u 4 && exit 72 # nobody is there to be told how the command ended
}

watch() {
    local line=
    while [[ $line != stop ]]; do
        read -r -t "$lease_s" -u 3 line || {
            echo gone >&4
            break
        }
    done
    kill -KILL -1
}

run() {
    local token=$1 workdir command name status
    printf -v workdir %b "$2"
    printf -v command %b "$3"
    shift 3
    (
        trap - $ended_by
        cd "$workdir" || { mkdir -p "$workdir" && cd "$workdir"; }
        for name; do
            printf -v name %b "$name"
            export "${name?}"
        done
        echo 500 >/proc/self/oom_score_adj
        exec bash -c "$command" 2>&1 3<&- 4<&-
    ) &
    local child=$!
    watch >/dev/null &
    wait "$child"
    status=$?
    sweep
    wait
    printf '%s:%d\n' "$token" "$status"
}

while read -r -t "$lease_s" -u 3 -a request; do
    [[ ${request[0]} == run ]] && run "${request[@]:1}"
done
kill -KILL -1
