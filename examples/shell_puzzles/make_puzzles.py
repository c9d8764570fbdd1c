"""Writes shell puzzles in Harbor's format, and demonstrations that solve fifty of those to train on.

A puzzle asks for a file or a folder. Names are of a small vocabulary, so that a tiny model can learn them; puzzles of
the split `test` combine them in ways that no demonstration has.
"""

import json
import random
import sys
from pathlib import Path

WORDS = ("apple", "river", "stone", "green", "table", "music", "cloud", "horse", "paper", "light")
SYSTEM = "Fix the bug. Answer with one ```bash block per turn. Use `submit` as the command when done."
NO_OUTPUT = "(no output)"
DEMONSTRATIONS = 50
TESTED = range(64, 88)  # of the puzzles that are drawn; without those that were asked before
PUZZLES = 208


def make_puzzle(kind: int, one: str, two: str, count: int) -> tuple[str, str, str]:
    """Returns what is asked for, the command that does it, and a shell condition that holds afterwards."""
    if kind == 0:
        return f"Write the word {one} to {two}.txt.", f"echo {one} > {two}.txt", f'[ "$(cat {two}.txt)" = {one} ]'
    if kind == 1:
        asked = f"Make the folder {one} with an empty file {two}.txt in it."
        return asked, f"mkdir {one} && touch {one}/{two}.txt", f"[ -f {one}/{two}.txt ] && [ ! -s {one}/{two}.txt ]"
    if kind == 2:
        asked = f"Write the numbers from 1 to {count} to {one}.txt, one per line."
        return asked, f"seq {count} > {one}.txt", f'[ "$(cat {one}.txt)" = "$(seq {count})" ]'
    asked = f"Write the word {one} to {two}.txt {count} times, one per line."
    made = f"yes {one} | head -n {count}"
    return asked, f"{made} > {two}.txt", f'[ "$(cat {two}.txt)" = "$({made})" ]'


def write_task(folder: Path, asked: str, command: str, condition: str) -> None:
    """Writes a task folder: instruction, settings, verifier, solution."""
    for name, text in {
        "instruction.md": f"{asked}\n",
        "task.toml": 'version = "1.0"\n\n[verifier]\ntimeout_sec = 60.0\n\n[agent]\ntimeout_sec = 120.0\n',
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
        "tests/test.sh": f"#!/bin/bash\nif {condition}; then reward=1; else reward=0; fi\n"
        "echo $reward > /logs/verifier/reward.txt\n",
        "solution/solve.sh": f"#!/bin/bash\n{command}\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def demonstrate(name: str, asked: str, command: str) -> dict[str, object]:
    """Returns a row as `sft.data` reads it: the conversation that `agent=bash` would have."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{asked}\n"},
        {"role": "assistant", "content": f"```bash\n{command}\n```"},
        {"role": "user", "content": NO_OUTPUT},
        {"role": "assistant", "content": "```bash\nsubmit\n```"},
    ]
    return {"instance_id": name, "resolved": True, "messages": messages}


def main(folder: Path) -> None:
    rng = random.Random(0)
    drawn = [(kind, *rng.sample(WORDS, 2), rng.randint(2, 9)) for kind in range(4) for _ in range(60)]
    distinct = sorted(set(drawn))
    first = rng.sample(distinct, TESTED.stop)
    others = [puzzle for puzzle in distinct if puzzle not in first]
    rng.shuffle(others)
    asked_of = {puzzle: make_puzzle(*puzzle)[0] for puzzle in distinct}
    shown = {asked_of[puzzle] for puzzle in first[: TESTED.start]}
    tested = {asked_of[puzzle] for puzzle in first[TESTED.start :]} - shown
    rows = []
    for number, puzzle in enumerate([*first, *others][:PUZZLES]):
        asked, command, condition = make_puzzle(*puzzle)
        is_tested = number in TESTED
        # What is asked with the same words is on one side alone.
        if is_tested != (asked in tested):
            continue
        name = f"puzzle_{number:03d}"
        write_task(folder / "tasks" / ("test" if is_tested else "train") / name, asked, command, condition)
        if number < DEMONSTRATIONS:
            rows.append(demonstrate(name, asked, command))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "demonstrations.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
