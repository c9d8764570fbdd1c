"""`python -m swe_rl` whose ranks train on the CPU where the layout gives them GPUs; it notes which servers sleep.

The notes are lines of the file ASLEEP in the working folder, one for each turn of the trainer.
"""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

from swe_rl.__main__ import main
from swe_rl.engine.update import EngineTurns
from swe_rl.job import train

ASLEEP = "asleep.jsonl"
_made, _to_trainer = train.rank_group, EngineTurns.to_trainer


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


def note(found):
    with Path(ASLEEP).open("a") as file:
        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    train.rank_group, EngineTurns.to_trainer = on_the_cpu, noted
    sys.exit(main())
