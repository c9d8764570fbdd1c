"""The module is the process that ranks of this host are forked from, which has imported what they need.

An import costs seconds of a core, and each rank saves them. The driver starts one process for each start of its ranks:
`python -c BOOT serve SOCKET DRIVER MODULES SYS_PATH...`. Each message on the socket brings two descriptors. One is the
rank's end of its link, whose first message says what the rank shall do. The other is its report: the server writes the
rank's number there and, later, its exit status.

Invariants:
- There are one thread, no CUDA and no pool of threads: a fork copies none of them. Where an import made one, or failed,
  each rank is a new interpreter: it meets for itself what the server met, and reports it.
- It ends with its driver, also in the middle of its imports, and its ranks end with it.
- The driver's signals are blocked here from the first moment on; a rank decides what to do with them.
- Environment, folder and sys.path are those that the driver had when it started its ranks.
- It imports the standard library only, but for the imports that it is for.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

BOOT = "import sys; sys.path[:] = sys.argv[5:]; from swe_rl.trainer.ranks.fork_server import main; main()"
# Libraries that start threads when they are imported: numpy's and scipy's BLAS (torch's has no pool yet), pyarrow's
# jemalloc, which transformers imports where scikit-learn and pandas are installed.
_ARROW = "JE_ARROW_MALLOC_CONF"
_QUIET = {"OPENBLAS_NUM_THREADS": "1", _ARROW: "background_thread:false"}
_LOOK_S = 0.5


def main() -> None:
    """Reads `serve` or `rank`, a descriptor, the process that this one ends with, and modules with commas
    between them.
    """
    role = sys.argv[1]
    descriptor = int(sys.argv[2])
    parent = int(sys.argv[3])
    if role == "serve":
        hindrance = _import_modules(sys.argv[4].split(","), parent)
        if hindrance:
            print(f"each rank imports for itself: {hindrance}", file=sys.stderr, flush=True)
        # Without this, each rank would print once more what the imports printed.
        sys.stdout.flush()
        descriptor, parent = _serve_requests(socket.socket(fileno=descriptor), parent, forks=not hindrance)
    _be_a_rank(descriptor, parent)


def _be_a_rank(descriptor: int, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), name="driver", daemon=True).start()
    link = Connection(descriptor)
    try:
        work, arguments = link.recv()
    # The driver does not need it any more.
    except EOFError:
        os._exit(1)
    work(*arguments, link)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _import_modules(modules: Sequence[str], driver: int) -> str:
    """Imports the modules. Returns why a fork of this process would be no good rank; an empty text says
    that it is one.
    """
    if sys.platform != "linux":
        return f"on {sys.platform} libraries do not outlive a fork"
    before = {name: os.environ[name] for name in _QUIET if name in os.environ}
    os.environ.update(_QUIET)
    # The variable counts at the import alone; of an option given twice the last value holds.
    if before.get(_ARROW):
        os.environ[_ARROW] = f"{before[_ARROW]},{_QUIET[_ARROW]}"
    try:
        with pause_collection(), _ended_with(driver):
            for name in modules:
                importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for name in _QUIET:
            os.environ.pop(name, None)
        os.environ.update(before)
    # Threads that other libraries started count as well.
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"their imports started {threads - 1} threads"
    return ""


@contextmanager
def pause_collection() -> Iterator[None]:
    """Keeps collections from looking through the million objects of imports, which are no garbage, then
    or in a fork.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _ended_with(driver: int) -> Iterator[None]:
    """Ends this process with its driver, which it looks for without a thread."""

    def look(*_: object) -> None:
        if os.getppid() != driver:
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    # Without this, reads of libraries would break off.
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _serve_requests(requests: socket.socket, driver: int, *, forks: bool) -> tuple[int, int]:
    """Answers requests. Returns in forked ranks only: the link's descriptor, and the process that the
    rank ends with.
    """
    heard, noted = socket.socketpair()
    # `recv_fds` of Python 3.11 drops its flags, MSG_DONTWAIT too.
    for end in (heard, noted, requests):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(noted.fileno(), warn_on_full_buffer=False)
    waits = select.poll()
    for end in (heard, requests):
        waits.register(end, select.POLLIN)
    server = os.getpid()
    reports = dict[int, int]()
    while True:
        waits.poll(1000 * _LOOK_S)
        with suppress(BlockingIOError):
            heard.recv(4096)
        _reap_ranks(reports)
        if os.getppid() != driver:
            _kill_and_exit(reports)
        try:
            text, given, _, _ = socket.recv_fds(requests, 1, 2)
        except BlockingIOError:
            continue
        if not text:
            _kill_and_exit(reports)
        if not (rank := _fork_rank(given)):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (*(end.detach() for end in (heard, noted, requests)), *reports.values()):
                os.close(descriptor)
            if not forks or _knows_cuda():
                if forks:
                    print("this rank imports for itself: imports asked for GPUs", file=sys.stderr, flush=True)
                _start_anew(given, server)
            # `recv_fds` leaves them open for programs that a library starts.
            for descriptor in given:
                os.set_inheritable(descriptor, False)
            # The report stays open here: the end of it is the end of both of us.
            return given[0], server
        if rank > 0:
            reports |= {rank: given[1]}


def _fork_rank(given: Sequence[int]) -> int:
    """Returns the number of the new rank, 0 in itself, -1 where the system has none to give: the link says why."""
    link, report = given
    try:
        rank = os.fork()
    except OSError as error:
        Connection(link).send(("failed", type(error).__name__, str(error), time.monotonic(), False))
        _write_numbers(report, 0, 1)
        os.close(report)
        return -1
    if rank:
        os.close(link)
        _write_numbers(report, rank)
    return rank


def _start_anew(given: Sequence[int], server: int) -> None:
    """Makes this process a new interpreter, which is the rank."""
    for descriptor in given:
        os.set_inheritable(descriptor, True)
    before = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    os.execv(sys.executable, [*before, "rank", str(given[0]), str(server), *sys.argv[4:]])


def _knows_cuda() -> bool:
    """Tells whether the server had asked for GPUs, after which no fork of it may."""
    if "torch" in sys.modules:
        return bool(sys.modules["torch"].cuda._is_in_bad_fork())
    return False


def _reap_ranks(reports: dict[int, int]) -> None:
    while reports:
        rank, status = os.waitpid(-1, os.WNOHANG)
        if not rank:
            return
        # A process that an import started has no report.
        if (report := reports.pop(rank, None)) is not None:
            _write_numbers(report, os.waitstatus_to_exitcode(status))
            os.close(report)


def _write_numbers(report: int, *numbers: int) -> None:
    # Nobody may wait for it any more.
    with suppress(BrokenPipeError):
        os.write(report, "".join(f"{number}\n" for number in numbers).encode())


def _kill_and_exit(ranks: Mapping[int, int]) -> None:
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    os._exit(0)
