"""What tests let forked ranks do: told by name, so that the fork server can import it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace


def tell(link):
    """What this process is; then it waits to be told its exit status."""
    torch = sys.modules.get("torch")
    link.send(
        {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "environ": dict(os.environ),
            "folder": str(Path.cwd()),
            "path": list(sys.path),
            "modules": set(sys.modules),
            "threads": sorted(one.name for one in threading.enumerate()),
            "tasks": len(list(Path("/proc/self/task").iterdir())),
            "name": Path("/proc/self/comm").read_text().strip(),
            "ignored": {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN},
            "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "descriptors": [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.exists()],
            "cuda": bool(torch and (torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork())),
        }
    )
    _leave(link)


def become(setup, link):
    """A rank of `setup`, then as `tell`."""
    from swe_rl.trainer.ranks.rank import _become_a_rank

    _become_a_rank(setup)
    print("of a library", flush=True)
    tell(link)


def begin(setup, link):
    """A rank of `setup` until it is ready; then the names of what it has imported since its fork."""
    from swe_rl.trainer.ranks.rank import carry_out

    before, said = set(sys.modules), []
    pipe = SimpleNamespace(send=said.append, recv=lambda: ("close", (), {}))
    carry_out(setup, pipe)
    link.send((said, sorted(set(sys.modules) - before)))
    _leave(link)


def count(link):
    """A sum by all threads that torch takes by itself."""
    import torch

    link.send((torch.get_num_threads(), float(torch.ones(1 << 20).sum())))
    _leave(link)


def leave_a_program(link):
    """As Triton starts its assembler: with all descriptors that are not closed by themselves."""
    link.send(subprocess.Popen(["sleep", "60"], close_fds=False).pid)
    _leave(link)


def _leave(link):
    try:
        os._exit(link.recv())
    except EOFError:
        os._exit(1)
