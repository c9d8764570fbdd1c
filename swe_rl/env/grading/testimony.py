"""What the witness in a test runner's process says: how it gets there, and how its words are read.

Invariants:
- The witness is put into the environment before the patch is. Its key comes right before the tests, when everything
  that an installation left running has been ended, and is gone when the first tested line runs.
- Only records that are signed, in order and not one missing, are results. Whoever ends the runner before the witness
  has said the last word has proven nothing.
- A log of our own is made of the records, in the words of the repository's runner: the official reader reads both.
"""

import hashlib
import hmac
import json
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.env.grading import runner_process, witness
from swe_rl.env.grading.log_check import EXIT, START
from swe_rl.env.protocol import GradeError
from swe_rl.sandbox.protocol import ALONE, LISTENER, Sandbox

_PROBE_S = 120.0
_MAX_RECORDS_BYTES = 32 * 1024**2
_ACTIVATES = re.compile(r"^\s*(?:source|\.|conda activate|export PATH=|eval \"\$\(conda)\b")
_INTERPRETER = re.compile(r"(?:^|\s)(\S*/bin/python[\d.]*)\s")
_RUNNERS = ("pytest", "py.test", "unittest", "runtests.py", "nose", "nosetests")
_START_PTH = (
    "import os, sys; p = {start!r}; os.path.exists(p) and exec(open(p).read(), {{'__name__': 'swe_rl_witness'}})\n"
)
_NOT_THE_TESTS = {f"{outcome}{runner_process.ELSEWHERE}": "ERROR" for outcome in ("skipped", "xfailed")}
_DJANGO = {"passed": "ok", "failed": "FAIL", "skipped": "skipped 'x'", "xfailed": "expected failure"}
_PYTEST = {"passed": "PASSED", "failed": "FAILED", "skipped": "SKIPPED", "xfailed": "XFAIL", "xpassed": "XPASS"}
_SYMPY = {"passed": "ok", "failed": "F"}


@dataclass(frozen=True, slots=True)
class Witness:
    """Installed in one sandbox; `key` never leaves this process but for the moment in which the tests start."""

    folder: str
    prefix: str
    writable: bool
    programs: tuple[str, ...]
    before: Mapping[str, str]  # of the environment's start-up files and programs: path -> checksum
    watched: tuple[str, ...] = ()
    frozen: bool = False  # nothing in the sandbox can change a file of `prefix`
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    nonce: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


@dataclass(frozen=True, slots=True)
class Testimony:
    """`started`: the witness was there when the tests began; `finished`: it had the last word."""

    started: bool = False
    finished: bool = False
    forged: bool = False
    changed: frozenset[str] = frozenset()  # of the runner, while it ran
    written: frozenset[str] = frozenset()  # in the environment, since the patch came in
    records: tuple[Mapping[str, str], ...] = ()


async def install(sandbox: Sandbox, script: str, watched: Sequence[str]) -> Witness | None:
    """Before the patch is there. None where `script` has no marks, or no Python would run its tests.

    Raises SandboxError.
    """
    lines = script.split("\n")
    starts = [index for index, line in enumerate(lines) if START in line]
    if not starts:
        return None
    tests = [line for line in lines[starts[-1] + 1 :] if line.strip()][:3]
    activation = "\n".join(line for line in lines[: starts[-1]] if _ACTIVATES.match(line))
    named = _INTERPRETER.search(tests[0] + " ") if tests else None
    done = await sandbox.exec(
        _PROBE.replace("ACTIVATE", activation).replace("NAMED", shlex.quote(named[1] if named else "")),
        timeout_s=_PROBE_S,
        max_output_bytes=1_000_000,
    )
    head, separator, listing = done.output.partition("swe_rl environment\n")
    places = head.strip().split("\n")[-5:]
    if done.exit_code or not separator or len(places) != 5:
        return None
    folder, prefix, purelib, writable, frozen = places
    start = f"{folder}/start"
    words = (word.rpartition("/")[2] for line in tests for word in shlex_words(line))
    programs = dict.fromkeys([*_RUNNERS, *(word for word in words if word.endswith(".py") or word == "test")])
    text = _START_PTH.format(start=start)
    place = f"{purelib}/swe_rl_{secrets.token_hex(6)}.pth" if writable == "yes" else f"{folder}/lib/sitecustomize.py"
    put = await sandbox.exec(f"printf %s {shlex.quote(text)} > {shlex.quote(place)}", timeout_s=_PROBE_S)
    if put.exit_code:
        raise GradeError(f"the witness of the tests cannot be put into the environment: {put.output[-300:]}")
    before = dict(_sums(listing.split("\n")))
    return Witness(folder, prefix, writable == "yes", tuple(programs), before, tuple(watched), frozen == "yes")


def shlex_words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def with_witness(script: str, seen: Witness) -> str:
    """`script` with the witness let in right before the tests."""
    settings = {
        "start": f"{seen.folder}/start",
        "records": f"{seen.folder}/records",
        "key": seen.key,
        "programs": seen.programs,
        "watched": seen.watched,
    }
    text = runner_process.with_imports(Path(str(witness.__file__)))
    text += f"\nstart(__import__('json').loads({json.dumps(settings)!r}))\n"
    lines = script.split("\n")
    starts = [index for index, line in enumerate(lines) if START in line]
    names = {"nonce": seen.nonce, "folder": shlex.quote(seen.folder), "prefix": shlex.quote(seen.prefix)}
    let_in = _LET_IN % {
        **names,
        "alone": ALONE,
        "listener": LISTENER,
        "written": "" if seen.frozen else _WRITTEN % names,
        "text": text,
        "end": f"EOF_{seen.nonce}",
        "path": "" if seen.writable else f'export PYTHONPATH="{seen.folder}/lib${{PYTHONPATH:+:$PYTHONPATH}}"',
    }
    first = f"export SWE_RL_RUN={seen.nonce[:8]}"
    return "\n".join([lines[0], first, *lines[1 : starts[-1]], let_in, *lines[starts[-1] :]])


async def hear(sandbox: Sandbox, seen: Witness, log: str) -> Testimony:
    """After the tests. Raises SandboxError."""
    done = await sandbox.exec(
        f"cat {shlex.quote(seen.folder)}/records 2>/dev/null", timeout_s=_PROBE_S, max_output_bytes=_MAX_RECORDS_BYTES
    )
    return read(done.output, log, seen)


def read(text: str, log: str, seen: Witness) -> Testimony:
    """What of `text` is signed with the key, in its order."""
    sign = hashlib.blake2b(key=bytes.fromhex(seen.key))
    records: list[Mapping[str, str]] = []
    changed: frozenset[str] | None = None
    started = forged = False
    for count, line in enumerate(text.splitlines(), start=1):
        body, _, mark = line.rpartition(" ")
        expected = sign.copy()
        expected.update(f"{count} {body}".encode())
        if changed is not None or not hmac.compare_digest(expected.hexdigest(), mark):
            forged = True
            break
        try:
            record = json.loads(body)
        except (RecursionError, ValueError):  # too deep, or an integer of too many digits
            forged = True
            break
        started = started or "ready" in record
        if "finished" in record:
            changed = frozenset(record["finished"])
        elif "test" in record:
            records.append({name: _as_text(value) for name, value in record.items()})
    return Testimony(started, changed is not None, forged, changed or frozenset(), _written(log, seen), tuple(records))


def _as_text(value: object) -> str:
    """Tested code may have put anything into what the runner tells, half of a surrogate pair too."""
    return str(value).encode("utf-8", "replace").decode()


def _written(log: str, seen: Witness) -> frozenset[str]:
    """Files of the environment that are not what they were before the patch."""
    marked = re.findall(rf"^swe_rl {seen.nonce} wrote (.*)$", log, re.MULTILINE)
    return frozenset(path for path, sum_ in _sums(marked) if seen.before.get(path) != sum_)


def _sums(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """`cksum`'s lines: a sum, a size and a path."""
    for line in lines:
        words = line.split(" ", 2)
        if len(words) == 3:
            yield words[2], f"{words[0]} {words[1]}"


def as_log(testimony: Testimony, parser: str) -> str:
    """The records in the words of the runner whose log `parser` reads."""
    kind = {"parse_log_django": "unittest", "parse_log_sympy": "sympy"}.get(parser, "pytest")
    mine = [record for record in testimony.records if record["kind"] == kind]
    lines = {"unittest": _unittest_lines, "sympy": _sympy_lines, "pytest": _pytest_lines}[kind](mine)
    return "\n".join([f"+ : '{START}'", *lines, "+ : '>>>>> End Test Output'", f"{EXIT}: 0", ""])


def _worst(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Name -> outcome; what failed once has failed."""
    outcomes: dict[str, str] = {}
    for name, outcome in pairs:
        outcomes[name] = "failed" if "failed" in (outcome, outcomes.get(name)) else outcome
    return outcomes


def _unittest_lines(records: Sequence[Mapping[str, str]]) -> list[str]:
    named = _worst((record["test"], record["outcome"]) for record in records)
    about = _worst((record["about"], record["outcome"]) for record in records if record["about"])
    return [f"{name} ... {(_DJANGO | _NOT_THE_TESTS)[outcome]}" for name, outcome in (named | about).items()]


def _sympy_lines(records: Sequence[Mapping[str, str]]) -> list[str]:
    outcomes = _worst((record["test"], record["outcome"]) for record in records)
    return [f"{name} {_SYMPY.get(outcome, 's')}" for name, outcome in outcomes.items()]


def _pytest_lines(records: Sequence[Mapping[str, str]]) -> list[str]:
    phases: dict[str, dict[str, str]] = {}
    for record in records:
        phases.setdefault(record["test"], {})[record["when"]] = record["outcome"]
    return [f"{(_PYTEST | _NOT_THE_TESTS)[_outcome(phase)]} {name}" for name, phase in phases.items()]


def _outcome(phases: Mapping[str, str]) -> str:
    """A test's word is its call's, unless its set-up or its end did not pass."""
    words = list(phases.values())
    if "failed" in words:
        return "failed"
    if "call" in phases and phases["call"] != "passed":
        return phases["call"]
    other = [word for word in words if word != "passed"]
    return other[0] if other else "passed" if "call" in phases else "failed"


# The interpreter that the tests will run with, its packages, whether they can be added to, and whether they are frozen:
# on read-only mounts, in a sandbox where nobody may mount them otherwise (CAP_SYS_ADMIN is capability 21), or move a
# folder above them and put another in its place.
_PROBE = r"""
ACTIVATE
PATH=$PATH:/usr/bin:/bin
p=NAMED; [ -n "$p" ] || p=$(command -v python || command -v python3) || exit 3
d=$(mktemp -d) && mkdir "$d/lib" && : > "$d/records" && : > "$d/stamp" || exit 4
places=$("$p" -I -c 'import os, sys, sysconfig; assert sys.version_info >= (3, 6)
print(sys.prefix); print(sysconfig.get_paths()["purelib"])
try:
    prefix = os.path.realpath(sys.prefix)
    lines = [line.split() for line in (*open("/proc/self/status"), *open("/proc/self/mountinfo"))]
    [bound] = [int(words[1], 16) for words in lines if words[:1] == ["CapBnd:"]]
    below = [words[5] for words in lines if words[4:] and words[4].startswith(prefix.replace(" ", "\\040") + "/")]
    read_only = os.statvfs(prefix).f_flag & os.ST_RDONLY and all("ro" in mode.split(",") for mode in below)
    for path in (prefix, os.path.abspath(sys.prefix)):
        while read_only and path != "/":
            path = os.path.dirname(path)
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    print("yes" if read_only and not bound >> 21 & 1 else "no")
except Exception: print("no")') || exit 5
{ read -r prefix; read -r purelib; read -r frozen; } <<< "$places"
writable=no; [ -w "$purelib" ] && writable=yes
printf '\n%s\n%s\n%s\n%s\n%s\n' "$d" "$prefix" "$purelib" "$writable" "$frozen"
echo "swe_rl environment"
[ $writable = no ] || find "$prefix/bin" "$purelib" -maxdepth 2 -type f \( -path '*/bin/*' -o -name '*.pth' \
  -o -path '*.dist-info/*' -o -path '*.egg-info/*' -o -name '*.egg-link' -o -name '__editable__*' \) -exec cksum {} +
exit 0
"""
# The installation's traces in the environment: the time of a change (ctime) is the kernel's. To look at each file of a
# large environment takes half a second of a core, for every patch, so what is frozen is not looked at.
_WRITTEN = r"""PATH=/usr/bin:/bin find %(prefix)s -type f -cnewer %(folder)s/stamp \( -path '*/_pytest/*.pyc' -o \
  ! -name 'swe_rl_*.pth' ! -name '*.pyc' ! -path '*.dist-info/RECORD' -size -4000k \
  ! \( -name '*.pth' ! -exec grep -q '^import' {} \; \) \) -exec cksum {} + 2>/dev/null |
  PATH=/usr/bin:/bin sed -n '1,400s/^/swe_rl %(nonce)s wrote /p' || true"""
# What the installation left running is ended. Where the sandbox has process numbers of its own, that is all but the
# script, what it was started by and the guard's listener, which is older than the script: what took its number later is
# not. Elsewhere it is what has the script's mark in its environment. What is ended may have started another one, so it
# is looked for until nothing is there; where that never comes, no test begins.
# `-x` is off: a here-document is no line of the log.
_LET_IN = r"""case $- in *x*) swe_rl_x=x; set +x ;; *) swe_rl_x= ;; esac
swe_rl_up=" 1 "; swe_rl_p=$BASHPID
while [ "${swe_rl_p:-0}" -gt 1 ]; do
  swe_rl_up="$swe_rl_up$swe_rl_p "
  swe_rl_p=$(PATH=/usr/bin:/bin sed -n 's/^PPid:[[:space:]]*//p' "/proc/$swe_rl_p/status")
done
swe_rl_began=($(PATH=/usr/bin:/bin sed -n 's/.*) \([^ ]* \)\{19\}\([0-9]*\) .*/\2/p' \
  "/proc/${%(listener)s:-1}/stat" "/proc/$$/stat" 2>/dev/null)) || :
[ "${swe_rl_began[0]-}" -le "${swe_rl_began[1]-}" ] 2>/dev/null && swe_rl_up="$swe_rl_up${%(listener)s:-1} "
for swe_rl_turn in {1..500} end; do
  swe_rl_left=no
  for swe_rl_p in /proc/[0-9]*; do
    swe_rl_p=${swe_rl_p#/proc/}
    case $swe_rl_up in *" $swe_rl_p "*) continue ;; esac
    [ -n "${%(alone)s-}" ] ||
      PATH=/usr/bin:/bin grep -qzx "SWE_RL_RUN=$SWE_RL_RUN" "/proc/$swe_rl_p/environ" || continue
    if kill -9 "$swe_rl_p" || [ ! -d "/proc/$swe_rl_p" ]; then swe_rl_left=yes; fi # but not where it may not be killed
  done 2>/dev/null
  [ $swe_rl_left = yes ] || break
  PATH=/usr/bin:/bin sleep 0.01
done
[ $swe_rl_turn != end ] || exit 1
%(written)s
cat > %(folder)s/start <<'%(end)s'
%(text)s
%(end)s
%(path)s
[ -z "$swe_rl_x" ] || set -x"""
