"""One thing says what a secret is: what is printed of a configuration and what a run logs hide the same."""

import io
import json
import logging
from pathlib import Path

import pytest

from swe_rl.config.secrets import mask_text
from swe_rl.files.json_text import encode_json
from swe_rl.files.redactor import Redactor
from swe_rl.logger.jsonl import JsonlWriter, read_jsonl
from swe_rl.logger.run_log import RunLog

VARIABLES = ["WANDB_API_KEY", "HF_TOKEN", "CLIENT_SECRET", "DB_PASSWORD", "DB_PASSWD", "GOOGLE_CREDENTIAL", "apiKey"]


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("value", ["s3cr3t-value", "four"])
def test_a_secret_is_in_no_text(variable, value, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, value)
    text = f"login with <{value}> failed"
    console = io.StringIO()
    with RunLog(tmp_path / "run.log", console=console):
        logging.getLogger("x").error(text)
    with JsonlWriter(tmp_path / "events.jsonl") as writer:
        writer.append({"error": text})
    hidden = "login with <***> failed"
    assert mask_text(text) == hidden
    assert hidden in console.getvalue() and hidden in (tmp_path / "run.log").read_text()
    assert read_jsonl(tmp_path / "events.jsonl") == [{"error": hidden}]


@pytest.mark.parametrize("secret", ['pass"word\\1', 'pä"ss\\w', "日本\n語", "tab\there", "plain-secret"])
def test_no_writer_s_escapes_save_a_secret(secret):
    redactor = Redactor(frozenset({secret}))
    record = {"a": [f"<{secret}>"]}
    for encoded in (encode_json(record), json.dumps(record).encode()):
        assert json.loads(redactor.data_json(encoded)) == json.loads(redactor.record_json(encoded)) == {"a": ["<***>"]}


ADDRESS = "GET http://user:pass@host:80/a and https://token@host2/b?c=d@e failed"
HIDDEN = "GET http://***@host:80/a and https://***@host2/b?c=d@e failed"


def test_our_words_hide_who_an_address_is_for(tmp_path):
    assert mask_text(ADDRESS) == Redactor(frozenset()).text(ADDRESS) == HIDDEN
    console = io.StringIO()
    with RunLog(tmp_path / "run.log", console=console):
        logging.getLogger("x").error(ADDRESS)
    assert HIDDEN in console.getvalue() and HIDDEN in (tmp_path / "run.log").read_text()
    with JsonlWriter(tmp_path / "a.jsonl", ours=frozenset({"error"})) as writer:
        writer.append({"error": ADDRESS, "patch": ADDRESS})
    assert read_jsonl(tmp_path / "a.jsonl") == [{"error": HIDDEN, "patch": ADDRESS}]


def test_addresses_in_data_stay():
    """A patch to a library of addresses is full of them, and a published conversation has to be what was sampled."""
    encoded = json.dumps({"patch": ADDRESS}).encode()
    assert Redactor(frozenset({"another-secret"})).data_json(encoded) == encoded


def test_what_is_no_secret_stays(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SSL_KEY_FILE", str(Path.cwd()))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    text = f"{Path.cwd()} is false; see https://host/a@b and mail@host"
    assert mask_text(text) == text
