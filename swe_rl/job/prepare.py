"""`job=prepare`: makes the embedded instances anew and proves each of them.

Invariants:
- The files are replaced only when all instances of all splits were proven.
- Same packages, same files: a difference to what ships is said.
"""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swe_rl.config.schema import Config
from swe_rl.env.bugs.env import DATA, SPLITS
from swe_rl.env.bugs.generate import generate
from swe_rl.env.instance import Instance
from swe_rl.env.records import read_instances, write_instances
from swe_rl.errors import UserError

COUNTS = {"train": 64, "heldout": 32}
SEED = 0


def run(config: Config, folder: Path | None) -> int:
    del folder
    if config.env.name != "bugs":
        raise UserError(f"job=prepare makes the instances of env=bugs; env={config.env.name} cannot be prepared yet")
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    made: dict[str, list[Instance]] = {}
    with Progress(*columns, console=console) as progress:
        for split in SPLITS:
            bar = progress.add_task(f"proving {split}", total=COUNTS[split])
            made[split] = generate(split, COUNTS[split], SEED, lambda _, bar=bar: progress.advance(bar))  # type: ignore[misc]
    DATA.mkdir(exist_ok=True)
    for split, instances in made.items():
        path = DATA / f"{split}.jsonl"
        same = path.is_file() and read_instances(path) == instances
        if not same:
            write_instances(path, instances)
        console.print(f"{split}: {len(instances)} proven instances, {'unchanged' if same else 'written'}: {path}")
    return 0
