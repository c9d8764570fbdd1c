"""A process that was told to end ends in time, whatever its threads do, and says what kept it."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.slow

ENDS_S, SPEAKS_S = 2.0, 1.0
HEAD = f"""
import asyncio, faulthandler, hashlib, os, signal, sys, threading, time
from swe_rl.host import ending
from swe_rl.run import event_loop
from swe_rl.run.end_signal import listen_for_end

def speak(why):
    print(why, flush=True)
    return 77

def bounded(body, speak=speak):
    with ending.bound_ending(), ending.last_words(speak, {ENDS_S}, {SPEAKS_S}), listen_for_end(in_slurm=False):
        body()

def ready():
    print("ready", flush=True)
"""


def ends(script, number=signal.SIGTERM):
    """Exit status, output after `ready`, and seconds from the signal to the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.readline() == "ready\n"
        sent_s = time.monotonic()
        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=30)
        return process.returncode, out, time.monotonic() - sent_s
    finally:
        process.kill()


# Each block with and without a loop, and each signal with both: what hears a signal does not know what blocks.
@pytest.mark.parametrize(
    ("blocked", "loop", "number"),
    [
        ("while True: pass", True, signal.SIGTERM),
        ("while True: pass", False, signal.SIGINT),
        ("while True: time.sleep(0.01)", True, signal.SIGINT),
        ("while True: time.sleep(0.01)", False, signal.SIGTERM),
        # A call into C that gives back Python's lock and does not look for signals: no handler runs.
        ("hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", True, signal.SIGTERM),
        ("hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", True, signal.SIGINT),
        ("hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", False, signal.SIGINT),
    ],
)
def test_what_blocks_the_main_thread_is_named(blocked, loop, number):
    status, out, took_s = ends(
        f"""
        def spins():
            told = []
            while True:
                try:
                    told or [told.append(1), ready()]
                    {blocked}
                except KeyboardInterrupt:
                    pass  # somebody else's code
        async def blocks():
            spins()
        def body():
            {"event_loop.run_job(blocks())" if loop else "spins()"}
        bounded(body)
        """,
        number,
    )
    assert (status, took_s < ENDS_S + 1) == (77, True), (status, took_s, out)
    assert f"told by {signal.Signals(number).name} to end" in out and "(spins)" in out


def test_a_thread_that_the_end_waits_for():
    """The loop's end joins the threads of `asyncio.to_thread`."""
    status, out, took_s = ends(
        """
        async def trains():
            ready()
            await asyncio.to_thread(time.sleep, 60)
        bounded(lambda: event_loop.run_job(trains()))
        """
    )
    assert (status, took_s < ENDS_S + 1) == (77, True), (status, took_s, out)


@pytest.mark.parametrize("hangs", ["time.sleep(60)", "sum(range(10**12))"])
def test_last_words_that_hang(hangs):
    status, _, took_s = ends(
        f"""
        def body():
            ready()
            while True:
                try:
                    time.sleep(1)
                except KeyboardInterrupt:
                    pass
        def hang(why):
            {hangs}
        bounded(body, hang)
        """
    )
    assert status != 0 and took_s < ENDS_S + 1


def test_whoever_ends_in_time_ends_as_without_a_bound():
    status, out, took_s = ends(
        """
        async def works():
            ready()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.2)
                print("stopped", flush=True)
        def body():
            try:
                event_loop.run_job(works())
            except KeyboardInterrupt:
                sys.exit(130)
        bounded(body)
        """
    )
    assert (status, out, took_s < ENDS_S) == (130, "stopped\n", True)


def test_the_bound_holds_beyond_its_block_for_what_python_waits_for_at_its_end():
    status, _, took_s = ends(
        """
        def body():
            try:
                ready()
                time.sleep(60)
            except KeyboardInterrupt:
                threading.Thread(target=time.sleep, args=(60,)).start()
        bounded(body)
        """
    )
    assert (status, took_s < ENDS_S + 1) == (130, True)


def test_signals_of_a_forked_child_are_not_heard():
    script = """
        def body():
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
                print("child", flush=True)
                time.sleep(60)
            time.sleep(0.3)
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            time.sleep(3)
            print("alive", flush=True)
        bounded(body)
        """
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "child\nalive\n"), done.stderr


def test_outside_of_the_block_nothing_is_left():
    script = """
        bounded(lambda: None)
        bounded(lambda: None)
        print(signal.set_wakeup_fd(-1), [thread.name for thread in threading.enumerate() if thread.name == "ending"])
        """
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "-1 []\n", done.stderr
