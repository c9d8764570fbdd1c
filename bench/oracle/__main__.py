"""The container oracle in one command: makes instances of real packages with their images, then judges the application.

    python -m bench.oracle --out FOLDER [--each 5] [--seed 0] [--packages toolz,click] [--sandbox docker|podman|process]
    python -m bench.oracle --out FOLDER --dataset FILE          # instances of your own, with a column `source`

Every gold patch has to be resolved and no change that fixes nothing, through `job=eval`, graded by `swebench`'s own
code, and no container may be left. Exit status: 0 if so, 1 if not, 2 without an engine. All that was said is in
FOLDER/log.txt.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.oracle.engine import address_of, connect, containers_left, size_gb
from bench.oracle.make import EACH, chosen, make
from bench.oracle.run import Application, Arm, ArmError
from bench.oracle.table import shortfalls, table
from swe_rl.env.instance import Instance
from swe_rl.env.records import read_instances
from swe_rl.errors import SweRlError, UserError


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    try:
        return _judge(options, out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except (ArmError, SweRlError) as error:
        print(error, file=sys.stderr)
        return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="for instances, runs, logs and what is built")
    parser.add_argument("--each", type=int, default=EACH, help="instances of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", default="", help="names, separated by commas; all without it")
    parser.add_argument("--dataset", type=Path, help="a file of instances to be judged instead")
    parser.add_argument("--sandbox", default="docker", choices=("docker", "podman", "process"), help="judged")
    parser.add_argument("--at-once", type=int, default=2, help="trajectories at the same time")
    return parser.parse_args(arguments)


def _judge(options: argparse.Namespace, out: Path) -> int:
    engine = "docker" if options.sandbox == "process" else options.sandbox  # the tests are measured in containers
    client = connect(engine)
    instances, made_s = _instances(options, out, engine)
    dataset = (options.dataset or out / "instances.jsonl").resolve()
    application = Application(out, dataset, options.sandbox, address_of(engine), options.at_once)
    prepared_s = application.prepare()
    gold, no_op = application.evaluate("gold"), application.evaluate("noop")
    left = {arm.agent: containers_left(client, arm.folder.name) for arm in (gold, no_op)}
    print(table(instances, gold, no_op))
    print(f"made {made_s:.0f} s, prepared {prepared_s:.0f} s; {_times(gold)}; {_times(no_op)}")
    single, shared = size_gb(client, {one.image for one in instances})
    print(f"images: {len({one.image for one in instances})}, {single:.2f} GB one by one, {shared:.2f} GB on the disk")
    print(f"containers left: {sum(map(len, left.values()))}")
    wrong = shortfalls(instances, gold, no_op, whole=not (options.packages or options.dataset))
    wrong += [f"agent={agent} left {len(ids)} containers" for agent, ids in left.items() if ids]
    print("\n".join(wrong) or "the oracle holds", file=sys.stderr if wrong else sys.stdout)
    return int(bool(wrong))


def _instances(options: argparse.Namespace, out: Path, engine: str) -> tuple[list[Instance], float]:
    if options.dataset:
        return read_instances(options.dataset), 0.0
    started_s = time.monotonic()
    packages = chosen(options.packages)
    made = make(out, packages, each=options.each, seed=options.seed, address=address_of(engine))
    return made, time.monotonic() - started_s


def _times(arm: Arm) -> str:
    parts = []
    for part in ("boot", "grade"):
        found = arm.seconds(part)
        if found:
            parts.append(f"{part} {found[len(found) // 2]:.1f} ({found[0]:.1f} - {found[-1]:.1f}) s")
    return f"agent={arm.agent} {arm.wall_s:.0f} s: {', '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
