import dataclasses
import json
import sqlite3

import numpy as np
import pytest

from swe_rl.algo.loss import zero_advantage_contributes
from swe_rl.algo.row import Row
from swe_rl.config.choices import AdvantageKind, KlPlace
from swe_rl.config.schema import AlgoConfig
from swe_rl.config.yaml_text import read_yaml
from swe_rl.files.json_text import encode_json
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.rollout.rows import traced_rows, with_current_advantages
from swe_rl.rollout.trajectory import Trajectory
from swe_rl.trainer.minibatch import mini_batches
from swe_rl.trainer.ranks.rows_file import keep_rows
from swe_rl.view import tokens
from swe_rl.view.answers import Answers
from swe_rl.view.files import ViewError
from swe_rl.view.tokens import prompt_of, rows_of, token_page
from tests.view.conftest import TOKENIZER


@pytest.fixture
def config(folder):
    return read_yaml(folder.config_yaml)


def trainers_rows(folder, record):
    trajectory, store = Trajectory.from_record(record), TraceStore(folder.traces_db)
    rows = with_current_advantages(traced_rows(trajectory, store.traces(trajectory.trajectory_id)), [trajectory])
    store.close()
    return rows


def test_tokens_are_those_of_the_row_that_is_trained(folder, traced, config):
    page = token_page(folder, config, traced, 0, 0)
    (row,) = trainers_rows(folder, traced)
    assert page["ids"] == row.token_ids.tolist() and page["sampled"] == row.loss_mask.tolist()
    sampled = np.flatnonzero(row.loss_mask)
    assert [page["logprobs"][i] for i in sampled] == row.rollout_logprobs[sampled].tolist()
    assert [page["advantages"][i] for i in sampled] == row.advantage.tolist()
    assert [page["versions"][i] for i in sampled] == row.weight_versions.tolist() and {0, 1} == set(row.weight_versions)
    read_only = np.flatnonzero(~row.loss_mask)
    assert all(page[key][i] is None for key in ("logprobs", "advantages", "versions") for i in read_only)
    assert page["rows"] == [
        {"tokens": len(row.token_ids), "sampled": len(sampled), "in_loss": row.trained and row.teaches}
    ]
    assert "".join(page["texts"]) == TOKENIZER.decode(page["ids"], skip_special_tokens=False)
    assert "ünï 😀<|im_end|>" in "".join(page["texts"])


@pytest.mark.parametrize("advantage", [AdvantageKind.gae, AdvantageKind.teacher])
def test_an_advantage_that_the_trainer_finds_is_not_shown_as_zero(folder, traced, config, advantage):
    """It is in no file: the record has none, and the row's zeros are no advantages."""
    record = traced | {"advantage": None, "turn_advantages": [], "charged_reward": 1.0}
    (row,) = trainers_rows(folder, record)
    assert row.trained and not row.teaches
    page = token_page(folder, config | {"algo": config.get("algo", {}) | {"advantage": advantage.value}}, record, 0, 0)
    assert page["advantages"] == [None] * len(page["ids"]) and page["rows"][0]["in_loss"]
    assert "The trainer computed the advantages; they are not kept." in page["note"]
    left_out = token_page(folder, {"algo": {"advantage": advantage.value}}, record | {"trained": False}, 0, 0)
    assert not left_out["rows"][0]["in_loss"]
    assert not token_page(folder, config, traced | {"advantage": 0.0, "turn_advantages": []}, 0, 0)["rows"][0][
        "in_loss"
    ]


@pytest.mark.parametrize(
    "changes",
    [{}, {"kl_coef": 0.1}, {"kl_coef": 0.1, "kl_in": KlPlace.reward}, {"entropy_coef": 0.1}, {"balance_coef": 0.1}],
)
def test_a_row_of_no_advantage_is_in_the_loss_where_the_trainer_has_it_there(changes):
    algo = AlgoConfig(**changes)
    for trained in (False, True):
        row = Row("t", "g", [1, 2, 3], [False, True, True], [0, -1, -1], 0.0, [0, 0], trained=trained)
        feeds = bool(mini_batches([row], algo, 1, 0))
        written = json.loads(encode_json(dataclasses.asdict(algo)))
        assert tokens.in_loss(row, {"algo": written}) == feeds == (trained and zero_advantage_contributes(algo))


def test_pages_join_to_the_whole(folder, traced, config, monkeypatch):
    whole = token_page(folder, config, traced, 0, 0)
    monkeypatch.setattr(tokens, "MOST_TOKENS", 7)
    for key in ("ids", "sampled", "logprobs", "advantages", "versions"):
        parts = [token_page(folder, config, traced, 0, start)[key] for start in range(0, whole["total"], 7)]
        assert sum(parts, []) == whole[key]


@pytest.mark.parametrize("step", [2, 3])
def test_the_rows_of_a_step_stand_for_its_traces(folder, traced, config, step):
    """gateway.keep_traces=rows: the traces are gone, and the page is the same. Groups that flow are trained in another
    step than that of their names."""
    from_traces = token_page(folder, config, traced, 0, 0)
    keep_rows(trainers_rows(folder, traced), folder.rows(step))
    folder.trajectories(step).write_bytes(encode_json(traced) + b"\n")
    folder.traces_db.unlink()
    place = {"run": ["first"], "set": [f"step_{step:06d}"], "id": [traced["trajectory_id"]]}
    ask = Answers(folder.path).by_name
    from_rows = ask["tokens"](place)
    assert ask["prompt"](place)["tokens"] and from_rows.pop("source") == f"rows/step_{step:06d}.bin"
    assert from_traces.pop("source") == "traces.db" and from_rows == from_traces


def test_a_prompt_is_what_the_model_read_first(folder, traced, config):
    prompt = prompt_of(folder, config, traced)
    assert prompt["messages"] == [{"role": "system", "text": "Fix."}, {"role": "user", "text": "It is broken."}]
    assert prompt["left_out"] == 0 and prompt["tokens"] == token_page(folder, config, traced, 0, 0)["sampled"].index(
        True
    )


def test_reading_leaves_the_store_as_it_is(folder, traced):
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    rows_of(folder, traced)
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


def test_a_store_that_is_written_to_is_read(folder, traced):
    """As during a run: its folder is held, and what is committed is in the write-ahead log alone."""
    store = TraceStore(folder.traces_db)
    try:
        with folder:
            store.delete([traced["trajectory_id"]])
            store.flush_sync()
            with pytest.raises(ViewError, match="has not kept"):
                rows_of(folder, traced)
    finally:
        store.close()


def test_what_was_not_kept_is_said(folder, traced, config):
    other = traced | {"trajectory_id": "train.2.other.0.0"}
    with pytest.raises(ViewError, match="keep_traces"):
        token_page(folder, config, other, 0, 0)
    with pytest.raises(ViewError, match="1 rows"):
        token_page(folder, config, traced, 1, 0)
    with pytest.raises(ViewError, match="another version"):
        token_page(folder, config, {"trajectory_id": "x"}, 0, 0)


@pytest.mark.parametrize("content", [b"no database", b""])
def test_a_damaged_store(folder, traced, config, content):
    folder.traces_db.write_bytes(content)
    with pytest.raises(ViewError, match=r"traces\.db cannot be read"):
        token_page(folder, config, traced, 0, 0)


def test_a_store_of_an_older_version_is_read_and_not_touched(folder, traced, config):
    now = token_page(folder, config, traced, 0, 0)
    for version, column in ((4, "routes"), (3, "routes"), (2, "weight_versions"), (1, "held_s")):
        with sqlite3.connect(folder.traces_db) as connection:
            if version < 4:
                connection.execute(f"PRAGMA user_version = {version}")
            if version != 3:
                connection.execute(f"ALTER TABLE traces DROP COLUMN {column}")
        connection.close()
        before = folder.traces_db.read_bytes()
        if version == 4:  # which has one
            with pytest.raises(ViewError, match="another version"):
                token_page(folder, config, traced, 0, 0)
        else:
            assert token_page(folder, config, traced, 0, 0) == now
        assert folder.traces_db.read_bytes() == before


@pytest.mark.parametrize("path", ["/nowhere", "nobody/nothing", "builtin:unknown", "../x y", None, 7])
def test_without_a_tokenizer_ids_are_shown(folder, traced, path):
    page = token_page(folder, {"model": {"path": path}}, traced, 0, 0)
    assert page["note"] and page["texts"][0] == str(page["ids"][0])
