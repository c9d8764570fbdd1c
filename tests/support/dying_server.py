"""The fake vLLM server, some of whose starts die: `python dying_server.py DEATHS ...`, then a real server's arguments.

A start that finds a file in the folder DEATHS takes the first one away, and dies of it: `...start` at once, `...probe`
once it is healthy and was asked for tokens, as a server does whose workers are lost.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from tests.support.fake_vllm import server
from tests.support.fake_vllm.settings import settings_from

STATUS = 3


def death(folder: Path) -> str:
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # another server's
            path.unlink()
            return path.name
    return ""


async def fails(arguments: list[str]) -> None:
    settings, port, _ = settings_from(arguments, dict(os.environ))
    async with server.FakeVllm(settings, port=port) as fake:
        fake.fail_next(server.Fault(500), server.Fault(500))
        while fake._faults:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)


if __name__ == "__main__":
    how = death(Path(sys.argv.pop(1)))
    if how.endswith("probe"):
        asyncio.run(fails(sys.argv[1:]))
    if how:
        print(f"torch.OutOfMemoryError: CUDA out of memory ({how}).", flush=True)
    sys.exit(STATUS if how else server.main())
