"""This module makes a process that is told to end have ended some seconds later, whatever it is doing.

Invariants:
- SIGTERM and Ctrl-C are answered by whoever handles them: the run saves its state and stops what it started. This
  module only bounds the time for that. Then it ends the process itself, and leaves what a kill leaves.
- A thread of its own hears of the signals: their handlers run in the main thread, which may be the one that hangs. A
  call into C that does not give back Python's lock stops this thread, too, until it returns. If the call begins after
  the signal, the process ends in time all the same, but without last words.
- Nothing happens before a first signal, in child processes, or outside of `bound_ending`.
"""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

INTERRUPTED = 130
# The process ends so long after the first signal. SLURM kills a job 30 s after SIGTERM by default.
END_S = 10.0
# So much of this time is left for writing down how the process ended.
LAST_WORDS_S = 2.0
# So much is left for a process whose last words hang.
_EXIT_S = 0.4
# The end of a block looks so often whether a last signal was heard.
_JOIN_S = 0.05
_ASKS = frozenset({signal.SIGTERM, signal.SIGINT})
_OURS = str(Path(__file__).parents[1])

LastWords = Callable[[str], int]


@dataclass(eq=False)
class _Watch:
    """Hears of signals and ends the process in time. An event loop wants to hear of signals, too: `loops` is the
    descriptor that this watch has taken the place of."""

    reader: socket.socket
    writer: socket.socket
    end_s: float = END_S
    last_words_s: float = LAST_WORDS_S
    last_words: list[LastWords] = field(default_factory=list)
    loops: int = -1
    told_by: str | None = None
    forced_at_s: float | None = None

    def listen(self) -> int:
        """Has signals written to this watch. Only the main thread may call it. Returns the descriptor that they were
        written to before."""
        return signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        readable = select.poll()
        readable.register(self.reader, select.POLLIN)
        while True:
            if self.forced_at_s is None:
                left_ms = None
            else:
                left_ms = max(0.0, 1000 * (self.forced_at_s - time.monotonic()))
            if not readable.poll(left_ms):
                self._force()
            numbers = self.reader.recv(4096)
            if not numbers:
                self._end_of_block()
                return
            if self.loops >= 0:
                with suppress(OSError):
                    os.write(self.loops, numbers)
            asked = [number for number in numbers if number in _ASKS]
            if asked and self.told_by is None:
                self._begin(signal.Signals(asked[0]).name)

    def _end_of_block(self) -> None:
        """Returns where nobody was told to end. A signal that came just before the end of the block bounds what comes
        behind it, too: the main thread may have left the block before this thread heard of the signal."""
        if self.forced_at_s is not None:
            time.sleep(max(0.0, self.forced_at_s - time.monotonic()))
            self._force()

    def _begin(self, name: str) -> None:
        self.told_by = name
        self.forced_at_s = time.monotonic() + self.end_s - self.last_words_s
        silent = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        faulthandler.dump_traceback_later(self.end_s - _EXIT_S, exit=True, file=silent)

    def _force(self) -> None:
        waited_s = self.end_s - self.last_words_s
        place = _main_thread_place()
        why = f"told by {self.told_by} to end, and did not within {waited_s:.0f} s: the main thread was {place}"
        status = INTERRUPTED
        for speak in reversed(self.last_words):
            with suppress(Exception):
                status = speak(why)
        with suppress(OSError):
            os.write(2, f"{why}\n".encode())
        os._exit(status)


_watch: _Watch | None = None


@contextmanager
def bound_ending() -> Iterator[None]:
    """Bounds the process's time to `END_S` from a first signal inside the block on, also beyond the block. It does
    nothing in another thread than the main one."""
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    _watch = watch = _Watch(reader, writer)
    before = watch.listen()
    os.register_at_fork(after_in_child=_forget_watch)
    thread = threading.Thread(target=watch.run, name="ending", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if watch.told_by is None:
            signal.set_wakeup_fd(before)
            writer.close()
            while thread.is_alive() and watch.told_by is None:
                thread.join(_JOIN_S)
        if watch.told_by is None:
            reader.close()
            _watch = None


@contextmanager
def beside_loop() -> Iterator[None]:
    """Hears signals inside of a running event loop, and hands them on to the loop."""
    watch = _watch
    if watch is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = watch.listen()
    if before == watch.writer.fileno():
        watch.loops = -1
    else:
        watch.loops = before
    try:
        yield
    finally:
        watch.loops = -1
        signal.set_wakeup_fd(before)


def after_loop() -> None:
    """Listens again after an event loop has ended."""
    if _watch is not None and threading.current_thread() is threading.main_thread():
        _watch.listen()


@contextmanager
def last_words(speak: LastWords, end_s: float, last_words_s: float = LAST_WORDS_S) -> Iterator[None]:
    """Has `speak` write down why, and return the exit status, if the process has to be ended inside the block.

    `end_s` is how long this process has, and `last_words_s` how much of it `speak` may take.
    """
    if (watch := _watch) is None:
        yield
        return
    watch.end_s = end_s
    watch.last_words_s = last_words_s
    watch.last_words.append(speak)
    try:
        yield
    finally:
        watch.last_words.remove(speak)


def _main_thread_place() -> str:
    """Names the innermost place of ours at which the main thread is, and the innermost of all."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    places = []
    while frame is not None:
        places.append(frame)
        frame = frame.f_back
    if not places:
        return "gone"
    ours = next((place for place in places if place.f_code.co_filename.startswith(_OURS)), None)
    inside = ""
    if ours is not None and ours is not places[0]:
        inside = f", called by {_describe_frame(ours)}"
    return f"in {_describe_frame(places[0])}{inside}"


def _describe_frame(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{'/'.join(path.parts[-3:])}:{frame.f_lineno} ({frame.f_code.co_name})"


def _forget_watch() -> None:
    """Forgets the watch in a forked child, which has neither the thread nor a share in the parent's signals."""
    global _watch
    if _watch is not None:
        _watch = None
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
