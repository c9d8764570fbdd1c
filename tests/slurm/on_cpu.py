"""`python -m swe_rl` whose ranks train on the CPU where the layout gives them GPUs; it notes which servers sleep.

The notes are lines of the file ASLEEP in the working folder, one for each turn of the trainer. With the variable
CANCEL_ASLEEP=engine1 that server's step is cancelled in the first turn, while it sleeps.
"""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from swe_rl.__main__ import main
from swe_rl.engine.turns import Turns
from swe_rl.job import train

ASLEEP, CANCEL = "asleep.jsonl", "CANCEL_ASLEEP"
_made, _to_trainer = train._group, Turns.to_trainer


def on_the_cpu(*given):
    group = _made(*given)
    assert group._setup.shares_gpus and group._setup.world == len(group._setup.gpus)
    group._setup = dataclasses.replace(group._setup, device="cpu")
    return group


async def noted(turns):
    await _to_trainer(turns)
    found = {}
    for one in turns._engines:
        answer = await one._http.client.get("/is_sleeping")
        found[one.name] = answer.json()["is_sleeping"]
    await asyncio.to_thread(note, found)
    lost = os.environ.pop(CANCEL, None)
    if lost is not None:
        await asyncio.to_thread(cancel, lost)


def note(found):
    with Path(ASLEEP).open("a") as file:
        file.write(json.dumps(found) + "\n")


def cancel(name):
    listed = ["squeue", "-h", "-s", "-j", os.environ["SLURM_JOB_ID"], "-o", "%i|%j"]
    steps = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    [number] = [line.partition("|")[0] for line in steps if line.endswith(f"|{name}")]
    subprocess.run(["scancel", number], check=True)


if __name__ == "__main__":
    train._group, Turns.to_trainer = on_the_cpu, noted
    sys.exit(main())
