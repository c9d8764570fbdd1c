"""This module has sandboxes elsewhere of which only short calls are known: one runs a script there and returns.

Invariants:
- A command runs beside the call that started it, and each further call waits some time for its end. So a command can be
  stopped, may take longer than a call, and what breaks one call does not end the command.
- A small script there bounds a command's time, ends what it started, and gives it an environment of PATH and HOME.
- Where all processes are the sandbox's own, whatever runs at a command's end and did not run at the sandbox's start is
  ended, however it hides. On a shared machine a process that changes its environment, session and group escapes.
- Every script may run twice, as the answer of a call may be lost, and the call is made again.
- A sandbox that its own limits ended goes on answering that it used too much: that is the agent's doing.
- A command can reach the script's files. Whatever it does to them changes its own result at most, and breaks nothing.
- The place needs bash, coreutils and grep, and a /proc.
"""

import asyncio
import base64
import contextlib
import shlex
import tarfile
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.base import TIMEOUT_EXIT
from swe_rl.sandbox.sandbox import USED_TOO_MUCH, ExecResult, SandboxError

MARGIN_S = 20.0  # A call gets so long beyond what it waits for; a command beyond its own time, for its end.
_FILE_S = 120.0  # A call that moves a file gets so long.
_BEATS_IN_A_LEASE = 4  # One late sign of life ends no sandbox.
_KILLED = 137  # A command that SIGKILL ended has this status, so that of `timeout -s KILL`, too.
# Prints `PID:START` of all that runs, where START are the ticks from the boot on.
_LIST = r"""
for place in /proc/[0-9]*; do
  read -r stat < "$place/stat" || continue
  set -- ${stat##*) }
  echo -n "${place#/proc/}:${20} "
done 2> /dev/null
"""
# Ends all but the processes of $1, this one and those that called it. Nothing is started for that, as there may be no
# room for one more process. A process without memory is the kernel's, or has ended.
_SWEEP = r"""
sweep() {
  local kept=" $1 " mine=" " pid=$$ stat place left tries
  [ -n "$1" ] || return
  while [ "${pid:-0}" -gt 0 ] && read -r stat < "/proc/$pid/stat"; do
    mine="$mine$pid "; set -- ${stat##*) }; pid=$2
  done
  for tries in {1..20}; do
    left=
    for place in /proc/[0-9]*; do
      pid=${place#/proc/}
      case "$mine" in *" $pid "*) continue ;; esac
      read -r stat < "$place/stat" || continue
      set -- ${stat##*) }
      [ "${21}" != 0 ] || continue
      case "$kept" in *" $pid:${20} "*) ;; *) left="$left $pid" ;; esac
    done
    [ -n "$left" ] || break
    kill -KILL $left
  done
} 2> /dev/null
"""
# The arguments are $1: workdir, $2: seconds, $3: the command, $4: its mark, $5: its folder, $6: how many tenths of a
# second a call waits, $7: what `_LIST` printed, $8: the folder of the command before, then NAME=VALUE. `timeout` leads
# a process group of its own. What left the group is found by a variable of this command, or by `sweep`. Where the
# answer of a call was lost, the same call finds the folder, and waits for the command that runs.
_RUN = r"""
[ -z "$8" ] || rm -rf -- "$8"
seconds=$2 command=$3 mark=SWE_RL_COMMAND=$4 place=$5 tenths=$6 kept=$7
if cd -- "$1" 2> /dev/null && mkdir -m 700 -- "$5" 2> /dev/null; then
shift 8
(
env -i PATH="$PATH" HOME="${HOME:-/}" LANG=C.UTF-8 "$mark" "$@" \
  timeout -s KILL "$seconds" bash -c "$command" > "$place/out" 2>&1 < /dev/null &
pid=$!
wait "$pid" 2> /dev/null; status=$?
kill -KILL -- "-$pid" 2> /dev/null
for tries in 1 2 3; do
  left=$(grep -lsaF -- "$mark" /proc/[0-9]*/environ 2> /dev/null | tr -dc '0-9\n')
  [ -n "$left" ] || break
  kill -KILL $left 2> /dev/null
done
mkdir -p -m 700 -- "$place"; rm -rf -- "$place/status"; echo "$status" > "$place/status"
) > /dev/null 2>&1 < /dev/null &
pid=$!
echo "$pid" > "$place/pid"
elif [ -d "$5" ]; then
for tries in {1..50}; do [ -s "$place/pid" ] && break; sleep .1; done
pid=$(head -c 9 -- "$place/pid" | tr -dc '0-9')
else
echo 125; echo "bash: $1 or /tmp cannot be used"; exit
fi 2> /dev/null
set -- "$place" "$tenths" "${pid:-0}" "$kept"
"""
# The arguments are $1: the command's folder, $2: so many tenths of a second are waited, $3: the process that ends when
# the command's status is written, $4: what `_LIST` printed. The first line of output is the status, or `running` and
# that process. A zombie has ended. No file is read that is not a regular one, as another may have no end.
_WAIT = (
    _SWEEP
    + r"""
runs() { local stat; read -r stat < "/proc/$1/stat" && case "${stat##*) }" in [ZX]*) return 1 ;; esac; }
waited=0
for pause in .01 .01 .02 .04 .08; do
  runs "$3" 2> /dev/null || break
  sleep "$pause"
done
while runs "$3" 2> /dev/null && [ "$waited" -lt "$2" ]; do
  sleep .1; waited=$((waited + 1))
done
runs "$3" 2> /dev/null && { echo "running $3"; exit; }
sweep "$4"
status=
[ -f "$1/status" ] && status=$(head -c 3 -- "$1/status" | tr -dc '0-9')
echo "${status:-137}"
if [ ! -f "$1/out" ]; then
  :
elif [ "$(wc -c < "$1/out")" -gt 2097152 ]; then
  head -c 1048576 "$1/out"; echo; tail -c 1048576 "$1/out"
else
  cat "$1/out"
fi
"""
)
# The arguments are $1: the command's mark, $2: its folder, $3: what `_LIST` printed.
_END = (
    _SWEEP
    + r"""
sweep "$3"
kill -KILL $(grep -lsaF -- "SWE_RL_COMMAND=$1" /proc/[0-9]*/environ | tr -dc '0-9\n') 2> /dev/null
rm -rf -- "$2"
"""
)
# The arguments are $1: workdir, $2: a path. The scripts that begin so end with status 4 where it leaves the workdir.
_INSIDE = r"""
cd -- "$1" || exit 125
path=$(realpath -m -- "$2"); here=$(realpath -- .)
case "$path" in "$here"/*) ;; *) exit 4 ;; esac
"""
# $3: so many bytes a file may have.
_READ = _INSIDE + (
    '[ -e "$path" ] || exit 3; [ -f "$path" ] || exit 4; '
    '[ "$(stat -L -c %s -- "$path")" -le "$3" ] || { echo "it has more than $3 bytes"; exit 5; }; base64 -w0 -- "$path"'
)
# $3: where the new content is.
_WRITE = (
    "trap 'rm -f -- \"$3\"' EXIT"
    + _INSIDE
    + 'mkdir -p -- "$(dirname -- "$path")" && { [ ! -e "$3" ] || mv -f -- "$3" "$path"; }'
)
_UNPACK = '[ ! -e "$2" ] || { mkdir -p -- "$1" && tar -xf "$2" -C "$1" && rm -f -- "$2"; }'


class ShellSandbox(ABC):
    """This is a sandbox whose place runs scripts. `scratch` is a folder of this machine for what goes there."""

    wait_s = 1.0  # So long one call waits for a command's end.

    def __init__(self, sandbox_id: str, workdir: str, scratch: Path, config: SandboxConfig) -> None:
        self.sandbox_id = sandbox_id
        self.workdir = workdir
        self._scratch = scratch
        self._max_file_bytes = config.max_file_mb * 1024**2
        self._mark = uuid.uuid4().hex
        self._kept = ""  # what `_LIST` printed where all processes are the sandbox's own
        self._place = ""  # the folder there of the last command
        self._exceeded = ""  # which limit ended the sandbox
        self._beating: asyncio.Future[None] | None = None

    @abstractmethod
    async def _ran(self, script: str, words: tuple[str, ...], limit_s: float) -> tuple[int, str]:
        """Runs a script there with its arguments. Returns the exit status and stdout, and stderr where it failed.

        A shell may complain about an image's environment, which belongs neither to a status nor to a file.
        """

    @abstractmethod
    async def _upload(self, file: Path) -> str:
        """Copies a file of this machine there, and returns its path."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all that runs and removes all files."""

    async def _give_sign_of_life(self) -> None:
        """Tells the sandbox that its run lives."""

    async def _find_exceeded(self, error: SandboxError) -> str:
        """Returns which limit of its own has ended the sandbox, as words for its agent, or an empty text."""
        return ""

    async def exec(self, command: str, timeout_s: float, env: Mapping[str, str]) -> ExecResult:
        if self._exceeded:
            return self._used_too_much()
        place = f"/tmp/swe_rl-{uuid.uuid4().hex}"
        try:
            return await self._run_bounded(command, timeout_s, env, place)
        except SandboxError as error:
            self._exceeded = await self._find_exceeded(error)
            if self._exceeded:
                return self._used_too_much()
            await self._end_command(place)
            raise
        except BaseException:
            await self._end_command(place)
            raise

    async def _run_bounded(self, command: str, timeout_s: float, env: Mapping[str, str], place: str) -> ExecResult:
        """Runs a command whose files are in the folder `place` there. Raises SandboxError."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        tenths = f"{10 * self.wait_s:.0f}"
        given = [f"{name}={value}" for name, value in env.items()]
        before = self._place
        self._place = place
        words = (self.workdir, f"{timeout_s:g}", command, self._mark, place, tenths, self._kept, before, *given)
        status, output = await self._answer(_RUN + _WAIT, words)
        while not status.isdigit():
            state, _, process = status.partition(" ")
            if state not in ("running", "killed"):
                raise SandboxError(f"{self.sandbox_id}: a command has no exit status: {status[:200]!r}")
            if clock() - began_s > timeout_s + MARGIN_S:
                raise SandboxError(f"{self.sandbox_id}: a command did not end {MARGIN_S:g} s after its time")
            status, output = await self._answer(_WAIT, (place, tenths, process, self._kept))
        is_late = int(status) == _KILLED and clock() - began_s >= timeout_s
        return ExecResult(TIMEOUT_EXIT if is_late else int(status), output, timed_out=is_late)

    async def _end_command(self, place: str) -> None:
        with contextlib.suppress(Exception):
            await asyncio.shield(self._ran(_END, (self._mark, place, self._kept), MARGIN_S))

    def _used_too_much(self) -> ExecResult:
        return ExecResult(_KILLED, f"{USED_TOO_MUCH} {self._exceeded}.\n")

    async def write_file(self, path: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            file = Path(place) / "file"
            await asyncio.to_thread(file.write_bytes, content)
            there = await self._upload(file)
        await self._script(_WRITE, self.workdir, path, there)

    async def read_file(self, path: str) -> bytes:
        return base64.b64decode(await self._script(_READ, self.workdir, path, str(self._max_file_bytes)))

    async def _make_workdir(self, folder: Path | None) -> None:
        """Makes the working folder, with what is in `folder`. Raises SandboxError."""
        if folder is None:
            await self._script('mkdir -p -- "$1"', self.workdir)
        else:
            await self._unpack(folder)

    async def _unpack(self, folder: Path) -> None:
        """Copies a folder of this machine there as the working folder, as one archive."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as place:
            archive = Path(place) / "folder.tar"
            await asyncio.to_thread(_pack_folder, folder, archive)
            there = await self._upload(archive)
        await self._script(_UNPACK, self.workdir, there)

    async def _own_all_processes(self) -> None:
        """Notes what runs now. From then on everything else is ended with each command. Raises SandboxError."""
        self._kept = (await self._script(_LIST)).strip()

    def _keep_alive(self, lease_s: float) -> None:
        """Gives signs of life from now on, several within `lease_s`, until `_stop_signs` is called."""
        self._beating = asyncio.ensure_future(self._beat(lease_s / _BEATS_IN_A_LEASE))

    def _stop_signs(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self, pause_s: float) -> None:
        while True:
            # What is wrong here is said by the next command.
            with contextlib.suppress(Exception):
                await self._give_sign_of_life()
            await asyncio.sleep(pause_s)

    async def _answer(self, script: str, words: tuple[str, ...]) -> tuple[str, str]:
        ended, said = await self._ran(script, words, self.wait_s + MARGIN_S)
        status, _, output = said.partition("\n")
        if ended == _KILLED and not status.isdigit():
            # The command ended what waits for it. Process 0 never runs, so that the next call waits for nothing.
            return "killed 0", ""
        return status, output

    async def _script(self, script: str, *words: str) -> str:
        """Runs a script there and returns its output.

        Raises FileNotFoundError for the script's own status of a missing file, and SandboxError for any other failure.
        """
        status, output = await self._ran(script, words, _FILE_S)
        if status == 3:
            raise FileNotFoundError(words[1])
        if status:
            raise SandboxError(f"{self.sandbox_id}: {shlex.join(words)[:200]}: status {status} {output[-300:]}")
        return output


def _pack_folder(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, ".")
