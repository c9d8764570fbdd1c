"""This module has the environment variables that people already set: which are honoured, what each is for, and where it
came from.

Invariants:
- What the environment holds wins over `.env`; a `.env` file is read once, in the folder where the run starts.
- Values never leave through here: `describe_variables` masks secrets, and the list of names that came from the file
  holds no value.
"""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from swe_rl.config.secrets import is_secret_key, mask_text
from swe_rl.errors import UserError
from swe_rl.files.redactor import MASK
from swe_rl.host.gpus import visible_devices

# Says for each variable what it decides.
HONOURED: dict[str, str] = {
    "WANDB_API_KEY": "logger.wandb=online",
    "MLFLOW_TRACKING_URI": "where logger.mlflow=true writes",
    "TRACKIO_DIR": "where logger.trackio=true writes",
    "HF_TOKEN": "model.path and env.dataset of the hub",
    "VLLM_URL": "engine.urls with engine=external",
    "MODEL": "model.path of the experiments django_grpo_*",
    "NUM_ROLLOUTS": "trainer.steps of the experiments django_grpo_*",
    "ROLLOUT_BATCH_SIZE": "rollout.prompts_per_step of the experiments django_grpo_*",
    "N_SAMPLES": "rollout.n of the experiments django_grpo_*",
    "OUTPUT_DIR": "paths.outputs of the experiments django_grpo_*",
    "SWE_PDB_MODEL_PATH": "model.path of the experiments swepdb_*",
    "SWE_PDB_CHECKPOINT_BASE": "paths.outputs of the experiments swepdb_*",
    "N_PARALLEL": "rollout.n of the experiments swepdb_*",
    "MAX_STEPS": "rollout.max_turns of the experiments swepdb_*",
    "KODCODE_DATA_PATH": "env.dataset with env=kodcode",
    "TRAINING_DATA_SYNC_DEST": "paths.sync_to",
    "CUDA_VISIBLE_DEVICES": "which GPUs of this machine are used",
    "SWE_RL_GATEWAY_KEY": "what clients of job=serve must send",
    "SWE_RL_RUNTIME_KEY": "what sandbox=remote sends",
    "SWE_RL_VLLM_COMMAND": "how engine=vllm starts a server",
}
# The first of these that is set is the key of engines' servers.
SERVER_KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")
# This variable has the names only. Jobs that start other processes hand it on.
_FROM_FILE = "SWE_RL_FROM_DOTENV"


def read_dotenv(folder: Path, environment: MutableMapping[str, str] | None = None) -> list[str]:
    """Adds what `folder/.env` sets and the environment does not; returns the names, never the values.

    Raises UserError for a file that cannot be read.
    """
    if environment is None:
        environment = os.environ
    path = folder / ".env"
    if not path.is_file():
        return []
    from dotenv import dotenv_values

    try:
        values = dotenv_values(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Save it as UTF-8 text, or take it away.") from error
    added = {name: value for name, value in values.items() if value and name not in environment}
    environment.update({name: str(value) for name, value in added.items()})
    known = set(environment.get(_FROM_FILE, "").split(",")) | set(added)
    environment[_FROM_FILE] = ",".join(sorted(known - {""}))
    return list(added)


def origin_of(name: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns `environment` or `.env`, or an empty text if the variable is not set."""
    if environment is None:
        environment = os.environ
    if not environment.get(name):
        return ""
    if name in environment.get(_FROM_FILE, "").split(","):
        return ".env"
    return "environment"


def read_variable(name: str, default: Any) -> Any:
    """Resolves `${swe_rl.env:NAME,DEFAULT}` in conf/ from the environment. A variable that is set to nothing counts as
    not set."""
    return os.environ.get(name) or default


def key_of(environment: Mapping[str, str], *names: str) -> str | None:
    """Returns the first of these variables that is set, without the line break that a file's end leaves: no HTTP header
    can have it."""
    return next((key for name in names if (key := environment.get(name, "").strip())), None)


def describe_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Describes each honoured variable: its value or `***`, where it came from and what it decides; or that it is not
    set."""
    if environment is None:
        environment = os.environ
    rows = {}
    for name, purpose in HONOURED.items():
        origin = origin_of(name, environment)
        if is_secret_key(f"env_vars.{name}"):
            value = MASK
        else:
            value = mask_text(environment.get(name, ""))
        if origin:
            rows[name] = f"{value} (from: {origin}) -> {purpose}"
        else:
            rows[name] = f"not set -> {purpose}"
    return rows


def visible_gpus(environment: Mapping[str, str]) -> int | None:
    """Returns how many GPUs CUDA_VISIBLE_DEVICES lets this process see, or None if it says nothing."""
    entries = visible_devices(environment.get("CUDA_VISIBLE_DEVICES"))
    if entries is None:
        return None
    return len(entries)
