"""This program makes one attempt by the Kimi command line (package kimi-cli) at the repository that is the working
directory. It runs in the sandbox.

Invariants:
- The Python that runs this has kimi-cli. Its own command says the same status for a limit of steps as for any failure;
  here a limit has one of its own.
- Its settings are ours and in no file, and what it writes lies outside of the repository: no telemetry, no thinking, no
  sub-agents, no plans, no background work, no web, no question to the user. A conversation is one chain of tokens.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

STEP_LIMIT = 53
NO_PROGRAM = 127
# Its own compaction begins later than any context ends: the gateway's ends before.
_CONTEXT_TOKENS = 100_000_000
_AGENT = """\
version: 1
agent:
  extend: default
  exclude_tools:
    - "kimi_cli.tools.agent:Agent"
    - "kimi_cli.tools.ask_user:AskUserQuestion"
    - "kimi_cli.tools.background:TaskList"
    - "kimi_cli.tools.background:TaskOutput"
    - "kimi_cli.tools.background:TaskStop"
    - "kimi_cli.tools.file:ReadMediaFile"
    - "kimi_cli.tools.web:SearchWeb"
    - "kimi_cli.tools.web:FetchURL"
    - "kimi_cli.tools.plan:ExitPlanMode"
    - "kimi_cli.tools.plan.enter:EnterPlanMode"
"""


def _settings(base_url: str, model: str, api_key: str) -> dict[str, Any]:
    return {
        "default_model": "gateway",
        "default_thinking": False,
        "skip_afk_prompt_injection": True,
        "telemetry": False,
        "models": {"gateway": {"provider": "gateway", "model": model, "max_context_size": _CONTEXT_TOKENS}},
        "providers": {"gateway": {"type": "openai_legacy", "base_url": base_url, "api_key": api_key}},
        "loop_control": {"max_retries_per_step": 8, "compaction_trigger_ratio": 0.99},
    }


def _run_program(arguments: list[str]) -> int:
    """Runs the program with its own reading of the command line. Raises ImportError."""
    from kimi_cli.cli import cli
    from kimi_cli.soul import MaxStepsReached
    from kimi_cli.ui import print as printing

    run_soul = printing.run_soul
    limits: list[int] = []

    async def run_and_note(*given: Any, **named: Any) -> None:
        try:
            await run_soul(*given, **named)
        except MaxStepsReached as limit:
            limits.append(limit.n_steps)
            raise

    printing.run_soul = run_and_note
    try:
        status = cli(args=arguments, standalone_mode=False)
    except SystemExit as ended:
        status = ended.code
    if limits:
        return STEP_LIMIT
    return status if isinstance(status, int) else int(status is not None)


def main() -> int:
    folder = Path(os.environ["SWE_RL_FOLDER"])
    settings = _settings(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_MODEL"], os.environ["OPENAI_API_KEY"])
    (folder / "kimi.yaml").write_text(_AGENT, encoding="utf-8")
    (folder / "skills").mkdir(exist_ok=True)
    os.environ["KIMI_SHARE_DIR"] = str(folder / "kimi")
    given = ["--print", "--output-format", "stream-json", "--max-steps-per-turn", os.environ["SWE_RL_MAX_TURNS"]]
    # The settings have the address of the model and its key. In a file, the model's commands could read them.
    ours = ["--config", json.dumps(settings), "--agent-file", f"{folder}/kimi.yaml"]
    skills = ["--skills-dir", f"{folder}/skills"]
    try:
        return _run_program([*given, *ours, *skills, *sys.argv[1:]])
    except (ImportError, SyntaxError) as error:
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"kimi_cli: {sys.executable} (Python {version}) cannot load kimi-cli: {error}")
        return NO_PROGRAM


if __name__ == "__main__":
    sys.exit(main())
