"""The suite's own settings."""

import signal
import subprocess
import sys
from pathlib import Path

SHOWN = "import subprocess; subprocess.run(['grep', '-E', 'Sig(Blk|Ign)', '/proc/self/status'])"
BLOCKED = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def test_whatever_the_starter_ignored_or_blocked_what_a_test_starts_hears_it():
    """As `nohup ... &` of a script does, and some schedulers."""
    conftest = Path(__file__).with_name("conftest.py")
    code = f"import runpy, signal; runpy.run_path({str(conftest)!r}); print(signal.getsignal(signal.SIGINT)); {SHOWN}"
    deaf = 'trap "" HUP INT QUIT USR1 USR2 TERM CHLD; exec "$@"'
    command = ["bash", "-c", deaf, "bash", sys.executable, "-c", BLOCKED, sys.executable, "-u", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    handler, blocked, ignored = done.stdout.splitlines()
    assert handler == str(signal.default_int_handler)
    assert (blocked.split(), ignored.split()) == (["SigBlk:", "0" * 16], ["SigIgn:", "0" * 16])
