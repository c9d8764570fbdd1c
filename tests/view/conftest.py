"""Small runs on disk, with the tokens of a trajectory."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_jsonl
from swe_rl.view.tokens import _load_tokenizer
from tests.report.conftest import build_run
from tests.support.browser import chromium

TOKENIZER = _load_tokenizer("builtin:tiny", None)._tokenizer


def encoded(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def write_traces(
    folder: RunFolder, session_id: str, replies=("```bash\nls\n```<|im_end|>", "submit ünï 😀<|im_end|>")
) -> None:
    """A conversation of as many turns, each reply under the next weights."""
    store, base = TraceStore(folder.traces_db), {}
    delta = encoded(
        "<|im_start|>system\nFix.<|im_end|>\n<|im_start|>user\nIt is broken.<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = 0
    for turn, reply in enumerate(replies):
        ids = encoded(reply)
        logprobs, versions = -np.arange(len(ids)) / 8, [turn] * len(ids)
        store.append(Trace(session_id, turn, 0, delta, ids, logprobs, versions, "stop", **base))
        tokens += len(delta) + len(ids)
        base = {"base_turn": turn, "base_tokens": tokens}
        delta = encoded("\n<|im_start|>user\nout<|im_end|>\n<|im_start|>assistant\n")
    store.flush_sync()
    store.close()


@pytest.fixture(scope="session")
def _run_once(tmp_path_factory) -> Path:
    folder = build_run(tmp_path_factory.mktemp("view") / "run", steps=3)
    trajectory = read_jsonl(folder.trajectories(2))[5]
    write_traces(folder, trajectory["trajectory_id"])
    return folder.path


@pytest.fixture
def runs(tmp_path, _run_once) -> Path:
    """A folder of runs with one run, `train/first`, of three steps."""
    shutil.copytree(_run_once, tmp_path / "outputs" / "train" / "first")
    return tmp_path / "outputs"


@pytest.fixture
def folder(runs) -> RunFolder:
    return RunFolder(runs / "train" / "first")


@pytest.fixture
def traced(folder) -> dict:
    """The record of the trajectory whose tokens were kept."""
    return read_jsonl(folder.trajectories(2))[5]


@pytest.fixture(scope="session")
def chromium_address(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as address:
        yield address
