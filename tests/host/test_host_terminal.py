"""Readers that go away: real pipes, real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.host.terminal import WIDTH, terminal_width
from tests.support.command import LIGHT, warm

ROOT = Path(__file__).parent.parent.parent
# Says when it has written what nobody read, in a file of its own: both streams are what is tested.
FOLLOWS = """
import sys
from pathlib import Path
from swe_rl.host.terminal import outlive_readers, sleep_while_read
outlive_readers()
try:
    while True:
        sleep_while_read(60)
finally:
    Path(sys.argv[1]).write_text("ended")
"""


def unread(arguments, cwd, *, both, unbuffered=False, cold=False):
    """Exit status and stderr of a command whose standard output (`both`: and error) has no reader from the start.

    Forked from a process that has the imports done, unless `cold`.
    """
    reading, writing = os.pipe()
    os.close(reading)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = (writing, writing if both else None)
    try:
        if not (cold or unbuffered) and (
            forked := warm(LIGHT).start(list(arguments[2:]), cwd, environ, streams=streams)
        ):
            done = forked.completed(60)
            return done.returncode, done.stderr
        done = subprocess.run(
            [sys.executable, *(["-u"] if unbuffered else []), *arguments],
            cwd=cwd,
            env=environ,
            stdout=writing,
            stderr=writing if both else subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writing)
    return done.returncode, (done.stderr or b"").decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        pytest.param(["--version"], marks=pytest.mark.slow),  # as the one before
        ["--cfg", "job"],
        pytest.param(["--info", "defaults"], marks=pytest.mark.slow),  # by Hydra, as the one before
        pytest.param(["job=describe"], marks=pytest.mark.slow),  # as the next one
        ["job=describe", "job.format=json"],
        ["job=check"],
        ["job=plan"],
    ],
)
def test_what_only_prints_ends_in_silence(arguments, tmp_path):
    cold = arguments in (["--help"], ["job=plan"])
    assert unread(["-m", "swe_rl", *arguments], tmp_path, both=False, cold=cold) == (0, "")


def test_nobody_may_read_the_errors_either(tmp_path):
    assert unread(["-m", "swe_rl", "job=describe"], tmp_path, both=True) == (0, "")
    assert unread(["-m", "swe_rl", "rollout.n=0"], tmp_path, both=True, cold=True) == (2, "")


@pytest.mark.parametrize("unbuffered", [False, True])
def test_the_exit_status_stays_the_job_s_own(unbuffered, tmp_path):
    status, said = unread(["-m", "swe_rl", "job=check", "rollout.n=0"], tmp_path, both=False, unbuffered=unbuffered)
    assert (status, said) == (2, "")
    status, said = unread(["-m", "swe_rl", "rollout.n=0"], tmp_path, both=False)
    assert status == 2 and "Nothing was started." in said


def test_a_reader_that_leaves_in_between(tmp_path):
    """Far more than a pipe holds: the writer is in the middle of it when the reader leaves."""
    code = (
        "import sys; from swe_rl.host.terminal import outlive_readers; outlive_readers()\n"
        "for number in range(100000): print('line', number)\n"
        "print('went on', file=sys.stderr)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert process.stderr.read() == "went on\n"
    assert process.wait(60) == 0


def test_what_follows_ends_with_its_reader(tmp_path):
    """At once, although it has nothing to print."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWS, str(tmp_path / "end")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 0
    assert (tmp_path / "end").read_text() == "ended"


def test_text_arrives_as_it_was_written(tmp_path):
    code = (
        "import sys; from swe_rl.host.terminal import outlive_readers; outlive_readers()\n"
        "print('wörter', end=' '); sys.stdout.write('a\\n'); sys.stdout.flush(); sys.stdout.buffer.write(b'raw')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    assert done.stdout == "wörter a\nraw".encode()


def test_width_without_a_terminal(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert terminal_width(file) == WIDTH


def test_width_of_a_terminal():
    import fcntl
    import pty
    import struct
    import termios

    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        assert terminal_width(stream) == 57
    os.close(main)


def closed(arguments, cwd, redirections):
    """Exit status and what was said of a command whose standard streams were closed before it began."""
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {redirections}', "bash", sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirections", "argument", "status"),
    [
        ("<&-", "job=check", 0),
        pytest.param(">&-", "job=check", 0, marks=pytest.mark.slow),  # which writes there, as the next
        (">&-", "--version", 0),
        ("2>&-", "rollout.n=0", 2),  # which writes there
        pytest.param(">&- 2>&-", "rollout.n=0", 2, marks=pytest.mark.slow),
        ("<&- >&- 2>&-", "job=check", 0),
        pytest.param("<&- >&- 2>&-", "rollout.n=0", 2, marks=pytest.mark.slow),
    ],
)
def test_closed_streams_are_quiet(redirections, argument, status, tmp_path):
    ended, out, err = closed(["-m", "swe_rl", argument], tmp_path, redirections)
    assert ended == status and "Traceback" not in out + err, out + err


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(redirections, tmp_path):
    """Here and in a process that is started: what it prints would else land in the file."""
    code = (
        "import sys; from swe_rl.host.terminal import outlive_readers; outlive_readers()\n"
        "import subprocess\n"
        "file = open('file', 'w'); file.write('whole'); file.flush()\n"
        "print('out'); print('err', file=sys.stderr); sys.stdin.isatty(); sys.stdout.isatty()\n"
        "subprocess.run(['sh', '-c', 'exec 9> other; echo out; echo err >&2'], check=True)\n"
        "sys.exit(0 if file.fileno() > 2 else 9)"
    )
    status, out, err = closed(["-c", code], tmp_path, redirections)
    assert (status, (tmp_path / "file").read_text(), (tmp_path / "other").read_text()) == (0, "whole", "")
    assert out == ("" if ">&- " in f"{redirections} ".replace("2>&- ", "") else "out\nout\n")
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        pytest.param(["--version"], marks=pytest.mark.slow),
        pytest.param(["job=describe"], marks=pytest.mark.slow),
        ["job=plan"],
    ],
)
def test_what_only_shows_and_cannot_has_failed(arguments, tmp_path):
    status, _, err = closed(["-m", "swe_rl", *arguments], tmp_path, "> /dev/full")
    assert (status, err) == (1, "error: standard output cannot be written: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_below_a_log_ends_nothing(tmp_path):
    code = (
        "import sys; from swe_rl.host.terminal import outlive_readers; outlive_readers()\n"
        "for number in range(100000): print('line', number)\n"
        "open('end', 'w').write('went on')"
    )
    assert closed(["-c", code], tmp_path, "> /dev/full")[0] == 0
    assert (tmp_path / "end").read_text() == "went on"
