"""`job=view`: run folders in a browser, also of runs that go on, until Ctrl-C.

Invariants:
- It reads only, on this machine only. The address that it prints has the token without which nothing is shown.
- Ctrl-C is how it ends: exit status 0, and the port is free.
"""

import asyncio
import signal
from pathlib import Path

from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.run import event_loop
from swe_rl.view.server import ViewServer


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Raises UserError for a folder that is not there, and for a port that is taken."""
    del folder, origins
    root = Path(config.job.runs or config.paths.outputs)
    if not root.is_dir():
        key = "paths.outputs"
        if config.job.runs:
            key = "job.runs"
        raise UserError(f"{key}={root} is no folder. Give job.runs=FOLDER: a run's folder, or a folder of runs.")
    event_loop.run_job(_serve_until_signal(root, config.job.port))
    return 0


async def _serve_until_signal(root: Path, port: int) -> None:
    ended = asyncio.Event()
    async with ViewServer(root, port) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        print(f"runs in    {root}\nopen       {server.url}\nstop       Ctrl-C", flush=True)
        await ended.wait()
