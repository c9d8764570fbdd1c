"""Readers that go away: real pipes, real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.host.terminal import WIDTH, width

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


def unread(arguments, cwd, *, both, unbuffered=False):
    """Exit status and stderr of a command whose standard output (`both`: and error) has no reader from the start."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, *(["-u"] if unbuffered else []), *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
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
        ["--version"],
        ["--cfg", "job"],
        ["--info", "defaults"],
        ["job=describe"],
        ["job=describe", "job.format=json"],
        ["job=check"],
        ["job=plan"],
    ],
)
def test_what_only_prints_ends_in_silence(arguments, tmp_path):
    assert unread(["-m", "swe_rl", *arguments], tmp_path, both=False) == (0, "")


def test_nobody_may_read_the_errors_either(tmp_path):
    assert unread(["-m", "swe_rl", "job=describe"], tmp_path, both=True) == (0, "")
    assert unread(["-m", "swe_rl", "rollout.n=0"], tmp_path, both=True) == (2, "")


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
        assert width(file) == WIDTH


def test_width_of_a_terminal():
    import fcntl
    import pty
    import struct
    import termios

    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))
    with os.fdopen(terminal, "w") as stream:
        assert width(stream) == 57
    os.close(main)
