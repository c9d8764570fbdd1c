"""This program makes one attempt by Terminus 2, the agent of the package harbor, at the repository that is the working
directory. It runs in the sandbox.

Invariants:
- The Python that runs this has harbor. The model types into a tmux of the sandbox's own, which finds the environment
  that was there before, without the address of the model.
- Nothing is asked but the gateway: no cost map is loaded, no terminal is recorded, and nothing is installed.
- The conversation only grows: the agent's summaries are off. `--summarize` is asked for.
- Each step is printed as lines of JSON. The exit status says how the conversation ended.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

FINISHED = 0
FAILED = 1
STEP_LIMIT = 53
CONTEXT_OVERFLOW = 55
NO_PROGRAM = 127
# The model's terminal must not find variables that begin so: they have the address of the model.
_OURS = ("SWE_RL_", "OPENAI_", "ANTHROPIC_")
_HARBOR_ENV = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # Otherwise it is downloaded.
    "LITELLM_MODE": "PRODUCTION",  # Otherwise .env is read.
    "HARBOR_TELEMETRY": "off",
}
# The router may hold a turn for long, and the attempt has its own end.
_LONGEST_CALL_S = 24 * 3600
# The gateway's context ends before.
_MODEL_INFO = {"max_input_tokens": 100_000_000, "max_output_tokens": 100_000_000}
_TASK = """\
The repository is at {folder}, which is the working directory. This is the issue to solve:

{task}

Change the source code there so that the issue is solved. Do not change the tests that exist. There is no network.
"""


class ThisSandbox:
    """What the agent takes for its environment: the sandbox that this program itself is in."""

    default_user = None
    session_id = "sandbox"

    def __init__(self, folder: Path) -> None:
        self.trial_paths = SimpleNamespace(agent_dir=folder)

    async def exec(self, command: str, timeout_sec: float | None = None, **_: Any) -> Any:
        """Runs a command as the user that this program is."""
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            process.kill()
            await process.wait()
            return SimpleNamespace(stdout="", stderr=f"timed out after {timeout_sec} s", return_code=124)
        said = [stream.decode(errors="replace") for stream in (stdout, stderr)]
        return SimpleNamespace(stdout=said[0], stderr=said[1], return_code=process.returncode)

    async def is_dir(self, path: str, **_: Any) -> bool:
        done = await self.exec(f"test -d {shlex.quote(path)}")
        return bool(done.return_code == 0)

    async def upload_file(self, source_path: Path | str, target_path: str, **_: Any) -> None:
        shutil.copyfile(source_path, target_path)

    async def download_file(self, source_path: str, target_path: Path | str, **_: Any) -> None:
        shutil.copyfile(source_path, target_path)


def _print_step(step: Any) -> None:
    """Prints a step of the agent: what the model said and called, then what it was shown."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": step.message or ""}]
    for called in step.tool_calls or ():
        parts.append(
            {"type": "tool_use", "id": called.tool_call_id, "name": called.function_name, "input": called.arguments}
        )
    print(json.dumps({"type": "assistant", "message": {"role": "assistant", "content": parts}}))
    results = step.observation.results if step.observation else []
    shown = "\n".join(str(result.content or "") for result in results)
    result = {"type": "tool_result", "tool_use_id": "terminal", "content": shown}
    print(json.dumps({"type": "user", "message": {"role": "user", "content": [result]}}), flush=True)


def _make_agent(options: argparse.Namespace, folder: Path, base_url: str, model: str, api_key: str) -> Any:
    """Makes the agent. Sampling is the gateway's: nothing is asked for. Raises ImportError."""
    import litellm
    from harbor.agents.terminus_2.terminus_2 import Terminus2

    litellm.request_timeout = _LONGEST_CALL_S

    class PrintingTerminus(Terminus2):  # type: ignore[misc]
        printed = 0

        def _dump_trajectory(self) -> None:
            """Its own method writes all steps after each turn. Steps that are new by then are printed."""
            for step in self._trajectory_steps[self.printed :]:
                if step.source == "agent":
                    _print_step(step)
            self.printed = len(self._trajectory_steps)

    return PrintingTerminus(
        logs_dir=folder,
        model_name=f"openai/{model}",
        max_turns=options.max_turns,
        parser_name=options.parser,
        api_base=base_url,
        enable_summarize=options.summarize,
        proactive_summarization_threshold=0,
        model_info=_MODEL_INFO,
        record_terminal_session=False,
        suppress_max_turns_warning=True,
        llm_kwargs={"api_key": api_key},
    )


async def _run_agent(agent: Any, folder: Path, task: str) -> int:
    from harbor.agents.terminus_2.tmux_session import TmuxSession
    from harbor.llms.base import ContextLengthExceededError
    from harbor.models.agent.context import AgentContext

    sandbox = ThisSandbox(folder)
    # The agent's own set-up would log below /logs, which a sandbox need not have.
    agent._session = TmuxSession(
        session_name="terminus",
        environment=sandbox,
        logging_path=folder / "terminal.log",
        local_asciinema_recording_path=None,
        remote_asciinema_recording_path=None,
        user=None,
    )
    await agent._session.start()
    try:
        await agent.run(_TASK.format(folder=Path.cwd(), task=task.strip()), sandbox, AgentContext())
    except ContextLengthExceededError as error:
        print(f"terminus_2: {error}")
        return CONTEXT_OVERFLOW
    finally:
        await sandbox.exec("tmux kill-server")
    return _exit_status(agent)


def _exit_status(agent: Any) -> int:
    """Returns the end of a run that raised nothing: the model said that it is done, ended its terminal, or used up its
    turns."""
    if agent._pending_completion or agent._n_episodes < agent._max_episodes:
        return FINISHED
    return STEP_LIMIT


@contextlib.contextmanager
def _hidden_environment(folder: Path, host: str) -> Iterator[None]:
    """Takes the address of the model out of the environment, for everything that is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    for name in ("NO_PROXY", "no_proxy"):  # An image may name a proxy.
        kept[name] = ",".join(filter(None, [kept.get(name), host]))
    os.environ.clear()
    os.environ.update(kept | _HARBOR_ENV | {"TMUX_TMPDIR": str(folder)})
    yield


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-turns", type=int, default=int(os.environ["SWE_RL_MAX_TURNS"]))
    parser.add_argument("--parser", default="json", choices=("json", "xml"), help="in which the model writes commands")
    parser.add_argument("--summarize", action="store_true", help="sum a full conversation up, and begin another")
    return parser.parse_args()


def main() -> int:
    options = _parse_options()
    folder = Path(os.environ["SWE_RL_FOLDER"])
    base_url = os.environ["OPENAI_BASE_URL"]
    model = os.environ["OPENAI_MODEL"]
    api_key = os.environ["OPENAI_API_KEY"]
    task = Path(os.environ["SWE_RL_TASK_FILE"]).read_text(encoding="utf-8")
    if shutil.which("tmux") is None:
        print("terminus_2: there is no tmux in the sandbox")
        return NO_PROGRAM
    with _hidden_environment(folder, urlsplit(base_url).hostname or ""):
        try:
            agent = _make_agent(options, folder, base_url, model, api_key)
        except (ImportError, SyntaxError) as error:
            version = ".".join(map(str, sys.version_info[:3]))
            print(f"terminus_2: {sys.executable} (Python {version}) cannot load harbor: {error}")
            return NO_PROGRAM
        try:
            return asyncio.run(_run_agent(agent, folder, task))
        except Exception as error:
            print(f"terminus_2: {type(error).__name__}: {error}")
            return FAILED


if __name__ == "__main__":
    sys.exit(main())
