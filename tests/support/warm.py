"""A process that is ready to compose, and starts commands by forking: `python -m tests.support.warm MODULE...`.

A command that imports torch and transformers spends three seconds of a core on that, one that composes half of one.
Processes of pytest call on the inherited socket. Each request of theirs brings a command line, a folder, an environment
and three descriptors: standard output, standard error, and the one on which the process's number and its exit status
are reported. Further ones are kept open, and code finds their numbers in KEPT.

Invariants:
- One thread: a fork copies no other.
- The forked process is what `python -m swe_rl` would be: its own session, signals, environment, folder, arguments, and
  its own line in /proc. It ends as Python ends.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path

from tests.support.spare import REQUEST_BYTES, keep_spares, take_over, write_line

MOST_DESCRIPTORS = 5
_FIRST_S = 60.0  # whoever started this process calls at once, unless it was killed
LINE_BYTES = 16_384  # of the padding argument that the forked process writes its own line over


def serve(listener: socket.socket) -> dict:
    """Returns in forked processes only."""
    heard, noted = socket.socketpair()
    for end in (heard, noted, listener):  # `recv_fds` of Python 3.11 drops its flags, MSG_DONTWAIT too
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(noted.fileno(), warn_on_full_buffer=False)
    reports: dict[int, int] = {}
    callers: list[socket.socket] = []
    patience_s = _FIRST_S
    while True:
        ready = _wait(listener, callers, heard, patience_s)
        _reap(reports)
        if callers:
            patience_s = 0.0
        else:
            sys.exit(0)  # whoever asks is gone
        for caller in ready:
            try:
                text, descriptors, _, _ = socket.recv_fds(caller, REQUEST_BYTES, MOST_DESCRIPTORS)
            except BlockingIOError:
                continue
            except ConnectionResetError:  # it was killed
                text, descriptors = b"", []
            if not text:
                callers.remove(caller)
                caller.close()
                continue
            number = os.fork()
            if not number:
                for end in (listener, *callers, heard, noted):
                    end.close()
                for report in [*reports.values(), descriptors[2]]:
                    os.close(report)
                return json.loads(text) | {"streams": descriptors[:2], "kept": descriptors[3:]}
            with contextlib.suppress(BrokenPipeError):  # others ask after one that was killed, too
                os.write(descriptors[2], f"{number}\n".encode())
            reports[number] = descriptors[2]
            for descriptor in (*descriptors[:2], *descriptors[3:]):
                os.close(descriptor)


def _wait(
    listener: socket.socket, callers: list[socket.socket], heard: socket.socket, patience_s: float
) -> list[socket.socket]:
    """Returns the callers that have something to say, or are gone. Adds who calls now.

    `patience_s`: how long to wait for a caller where there is none."""
    ready, _, _ = select.select([listener, *callers, heard], [], [], None if callers else patience_s)
    if heard in ready:
        heard.recv(4096)
    if listener in ready:
        caller, _ = listener.accept()
        caller.setblocking(False)
        callers.append(caller)
    return [one for one in ready if one in callers]


def _reap(reports: dict[int, int]) -> None:
    while reports:
        number, status = os.waitpid(-1, os.WNOHANG)
        if not number:
            return
        report = reports.pop(number)
        with contextlib.suppress(BrokenPipeError):  # nobody waited for it
            os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(report)


def become(request: dict) -> None:
    """What a fresh process has: session, signals, streams, folder, environment, arguments."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever asked for us first may have blocked some
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    take_over(request)
    sys.argv = ["-c" if request["code"] else "-m", *request["arguments"]]
    sys.path[0] = "" if request["code"] else request["cwd"]
    if "torch" in sys.modules and not request["code"]:
        keep_spares(request["arguments"])
    program = ["-c", request["code"]] if request["code"] else ["-m", "swe_rl"]
    write_line([sys.executable, *program, *request["arguments"]])


def _compose_ready() -> None:
    """What each first composition of a process does and no option changes: a third of a small command's time."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.plugins import Plugins

    from swe_rl.config.compose import compose
    from swe_rl.host.machine import this_machine

    Plugins.instance()
    OverridesParser.create().parse_overrides(["a.b=[c,1]", "+d=e", "~f", "g={h:0.1}"])
    for job in ("train", "check", "plan", "describe"):
        compose([f"job={job}"])
    compose()
    this_machine.cache_clear()  # a command's environment may show it another machine


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[3:]:
        importlib.import_module(name)
    _compose_ready()
    assert threading.active_count() == 1 == len(list(Path("/proc/self/task").iterdir())), "a fork copies no thread"
    gc.collect()
    gc.freeze()
    request = serve(listener)
    become(request)
    if request["code"]:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__", "KEPT": request["kept"]})
    else:
        runpy.run_module("swe_rl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
