"""How a server is started: from the environment, this interpreter, or PATH."""

import importlib.util
import sys

import pytest

from swe_rl.engine.vllm.arguments import NoVllmError, command_of, vllm_command
from swe_rl.errors import UserError

API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/env/bin/python", ("/env/bin/python", *API_SERVER)),
        ("/env/bin/python3.12", ("/env/bin/python3.12", *API_SERVER)),
        ("nice -n 5 /env/bin/vllm", ("nice", "-n", "5", "/env/bin/vllm", "serve")),
        ("python -m vllm.entrypoints.cli.main serve", ("python", "-m", "vllm.entrypoints.cli.main", "serve")),
    ],
)
def test_the_variable(words, expected):
    assert vllm_command({"SWE_RL_VLLM_COMMAND": words}) == expected == command_of("engine.command", words)


def test_what_no_shell_could_read():
    with pytest.raises(UserError, match=r'SWE_RL_VLLM_COMMAND=python "x is no command: No closing quotation'):
        vllm_command({"SWE_RL_VLLM_COMMAND": 'python "x'})


def test_none_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoVllmError, match="SWE_RL_VLLM_COMMAND"):
        vllm_command({"PATH": str(tmp_path), "SWE_RL_VLLM_COMMAND": "  "})
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert vllm_command({"PATH": str(tmp_path)}) == (str(program), "serve")


@pytest.mark.parametrize("distribution", [True, False])
def test_this_interpreters(monkeypatch, distribution):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("swe_rl.engine.vllm.arguments.installed_version", lambda name: "0.32" if distribution else None)
    found = vllm_command({})
    assert found[0] == sys.executable and (found[-1] == "serve") is distribution  # the CPU build has no `serve`
