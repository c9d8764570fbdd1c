"""Rules of environments that are servers check the server's address, and the file of its tasks.

Invariants:
- No server is asked: whether it serves what the configuration says shows when the instances are read.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from swe_rl.check.findings import Finding, Host, error, rule_about
from swe_rl.check.rules.agent import NEMO_GYM, PAIRS
from swe_rl.check.rules.data import rows_in
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.dataset.server_address import find_address_problem

_READ_ROWS = 5  # So many rows show what a file holds.


@rule_about(Part.data)
def server_address(config: Config, _: Host) -> Iterator[Finding]:
    server = next((pair.server for pair in PAIRS if pair.env == config.env._target_), None)
    if server is None:
        return
    address = config.env.dataset
    if server.key != "env.dataset":
        address = str(config.env.params.get(server.key.rpartition(".")[2]))
    allow_remote = config.env.params.get("allow_remote") is True
    problem = find_address_problem(address, server, allow_remote=allow_remote)
    if problem is not None:
        yield error("server_address", server.key, problem.words, problem.fix)


@rule_about(Part.data)
def nemo_gym_rows(config: Config, host: Host) -> Iterator[Finding]:
    """Finds a file that has no rows of NeMo-Gym. Where it cannot be read here, the job says so."""
    if config.env._target_ != NEMO_GYM.env:
        return
    for key, name in (("env.dataset", config.env.dataset), ("env.eval_dataset", config.env.eval_dataset)):
        if name is None:
            continue
        if not name.endswith((".jsonl", ".json")):
            words = "env=nemo_gym reads the rows of its tasks from a .jsonl file, as resource servers ship them"
            yield error("nemo_gym_rows", key, words, f"{key}=FILE.jsonl")
        elif name.endswith(".jsonl") and any("responses_create_params" not in row for row in _first_rows(name, host)):
            words = f"{name} has rows without responses_create_params, so they are no tasks of NeMo-Gym"
            yield error("nemo_gym_rows", key, words, f"{key}=FILE.jsonl of a resource server")


def _first_rows(name: str, host: Host) -> list[dict[str, Any]]:
    return list(islice(rows_in(host.read_text(name) or ""), _READ_ROWS))
