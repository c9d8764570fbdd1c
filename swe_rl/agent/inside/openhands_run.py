"""This program makes one attempt by OpenHands' agent at the repository that is the working directory. It runs in the
sandbox.

Invariants:
- The Python that runs this has openhands-sdk and openhands-tools. The model's commands find the environment that was
  there before, without the address of the model.
- Nothing is asked but the gateway: no cost map, statistics, trace, plugin or skill is loaded, and no .env file of the
  repository is read. Nothing is written below the repository but by the model's tools.
- The conversation only grows, and no context changes from turn to turn. `--condense-after` and the tool `task` are
  asked for: the first has the SDK sum up old events, the second has sub-agents, whose conversations are their own.
- Each message is printed as a line of JSON. The exit status says how the conversation ended.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FINISHED = 0
FAILED = 1
STEP_LIMIT = 53
STUCK = 54
CONTEXT_OVERFLOW = 55
NO_SDK = 127
TOOLS = ("terminal", "file_editor", "task_tracker")
# This tool starts sub-agents.
SUB_AGENTS = "task"
# The SDK's condenser cannot be started with fewer events, as it keeps the first two.
LEAST_EVENTS = 8
# These are litellm's providers for each dialect.
DIALECTS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}
_SDK_ENV = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # Otherwise it is downloaded.
    "LITELLM_MODE": "PRODUCTION",  # Otherwise .env is read.
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "ALLOW_SHORT_CONTEXT_WINDOWS": "1",
    "LOG_LEVEL": "ERROR",
    "LOG_RICH_TRACEBACKS": "0",
}
# The model's commands must not find variables that begin so: they have the address of the model.
_OURS = ("SWE_RL_", "OPENAI_", "ANTHROPIC_")
# A completion is tried so often. With growing pauses that takes two minutes.
_TRIES = 10
_LONGEST_PAUSE_S = 30
# The router may hold a turn for long, and the attempt has its own end.
_LONGEST_CALL_S = 24 * 3600
_TASK = """\
The repository is at {folder}. This is the issue to solve:

<issue>
{task}
</issue>

Change the source code there so that the issue is solved. Do not change the tests that exist. Nobody answers questions \
and there is no network. Call `finish` when the change is made and checked.
"""


@dataclass
class Printer:
    """Prints messages. The calls of one completion are one message, but they come as events of their own."""

    response_id: str | None = None
    parts: list[dict[str, Any]] = field(default_factory=list)

    def on_event(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "ActionEvent":
            self._said(event.llm_response_id, [*_text_parts(event.thought), _tool_use(event.tool_call)])
        elif kind == "MessageEvent" and event.source == "agent":
            self._said(event.llm_response_id, _text_parts(event.llm_message.content))
        elif kind in ("ObservationEvent", "AgentErrorEvent"):
            self.flush()
            content = "".join(part["text"] for part in _text_parts(event.to_llm_message().content))
            _print_message("user", [{"type": "tool_result", "tool_use_id": event.tool_call_id, "content": content}])

    def flush(self) -> None:
        if self.parts:
            _print_message("assistant", self.parts)
        self.parts = []

    def _said(self, response_id: str | None, parts: list[dict[str, Any]]) -> None:
        if response_id != self.response_id:
            self.flush()
        self.response_id = response_id
        self.parts += parts


def _text_parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part.text} for part in content if hasattr(part, "text")]


def _tool_use(call: Any) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _print_message(role: str, parts: list[dict[str, Any]]) -> None:
    print(json.dumps({"type": role, "message": {"role": role, "content": parts}}), flush=True)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-iterations", type=int, default=int(os.environ["SWE_RL_MAX_TURNS"]))
    parser.add_argument(
        "--tools",
        default=",".join(TOOLS),
        help=f"beside finish and think, which are always there; {SUB_AGENTS}: sub-agents",
    )
    parser.add_argument("--condense-after", type=int, default=0, metavar="EVENTS", help="0: never")
    parser.add_argument("--dialect", default="chat", choices=DIALECTS, help="in which the gateway is asked")
    parser.add_argument("--no-stuck-detection", action="store_true", help="a conversation may repeat itself")
    options = parser.parse_args()
    options.tools = [name for name in options.tools.split(",") if name]
    known = (*TOOLS, SUB_AGENTS)
    if unknown := sorted(set(options.tools) - set(known)):
        parser.error(f"--tools: {', '.join(unknown)}: not one of {', '.join(known)}")
    if options.condense_after and options.condense_after < LEAST_EVENTS:
        parser.error(f"--condense-after: at least {LEAST_EVENTS} events, or 0")
    return options


@contextlib.contextmanager
def sdk_environment(folder: Path, host: str) -> Iterator[None]:
    """Sets the environment that the SDK is to find. Afterwards it is the one that the model's commands are to find."""
    before = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    before["OH_PERSISTENCE_DIR"] = str(folder / "openhands")  # Otherwise it is ~/.openhands.
    for name in ("NO_PROXY", "no_proxy"):  # An image may name a proxy.
        before[name] = ",".join(filter(None, [before.get(name), host]))
    os.environ.update(before | _SDK_ENV)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _make_llm(dialect: str, base_url: str, model: str, api_key: str) -> Any:
    """Makes the SDK's model. Sampling is the gateway's: nothing is asked for. Raises ImportError."""
    import openhands.tools  # noqa: F401
    from openhands.sdk import LLM

    if dialect == "messages":
        base_url = base_url.removesuffix("/v1")
    return LLM(
        model=f"{DIALECTS[dialect]}/{model}",
        base_url=base_url,
        api_key=api_key,
        usage_id="agent",
        api_mode="responses" if dialect == "responses" else "chat",
        timeout=_LONGEST_CALL_S,
        num_retries=_TRIES,
        retry_multiplier=1.0,
        retry_min_wait=1,
        retry_max_wait=_LONGEST_PAUSE_S,
        stream=False,
        caching_prompt=False,
        disable_vision=True,
        reasoning_effort=None,
    )


def _plain_shell(folder: Path) -> Path:
    """Writes a bash without colours, line editing and completion: with them observations have escape sequences and tabs
    get lost.

    Without line editing the kernel would cut lines at 4,095 bytes, unless it gathers none: Ctrl-D then ends no input.
    """
    shell = folder / "shell"
    shell.write_text(
        '#!/usr/bin/env bash\nexport TERM=dumb\nstty -icanon -echoctl\nexec bash --noediting "$@"\n', encoding="ascii"
    )
    shell.chmod(0o755)
    return shell


def _make_conversation(llm: Any, options: argparse.Namespace, folder: Path, printer: Printer) -> Any:
    from openhands.sdk import Agent, Conversation, Tool

    # One kind of terminal everywhere: with tmux, which few images have, the same command prints something else.
    params = {"terminal": {"terminal_type": "subprocess", "shell_path": str(_plain_shell(folder))}}
    names = [name for name in options.tools if name != SUB_AGENTS]

    def make_agent(llm: Any, *more: Any) -> Any:
        tools = [*(Tool(name=name, params=params.get(name, {})) for name in names), *more]
        condenser = _make_condenser(llm, options.condense_after)
        return Agent(llm=llm, tools=tools, condenser=condenser, system_prompt_kwargs={"cli_mode": True})

    sub_agents = [_sub_agents_of(make_agent)] if SUB_AGENTS in options.tools else []
    return Conversation(
        agent=make_agent(llm, *sub_agents),
        workspace=str(Path.cwd()),
        callbacks=[printer.on_event],
        max_iteration_per_run=options.max_iterations,
        stuck_detection=not options.no_stuck_detection,
        visualizer=None,
    )


def _make_condenser(llm: Any, events: int) -> Any:
    """Makes what sums up conversations of more than so many events, or None for 0."""
    if not events:
        return None
    from openhands.sdk.context.condenser import LLMSummarizingCondenser

    return LLMSummarizingCondenser(llm=llm.model_copy(update={"usage_id": "condenser"}), max_size=events, keep_first=2)


def _sub_agents_of(make_agent: Callable[[Any], Any]) -> Any:
    """Makes the tool that starts sub-agents, one at a time: they have the same tools, except this one."""
    from openhands.sdk import Tool, register_agent
    from openhands.tools.task import TaskToolSet

    register_agent("general-purpose", make_agent, "Has the same tools, but for this one.")
    return Tool(name=TaskToolSet.name)


def _run_conversation(conversation: Any, task: str) -> int:
    from openhands.sdk.conversation.exceptions import ConversationRunError
    from openhands.sdk.llm.exceptions import LLMContextWindowExceedError

    try:
        conversation.send_message(_TASK.format(folder=Path.cwd(), task=task.strip()))
        conversation.run()
    except ConversationRunError as error:
        cause = error.original_exception
        print(f"openhands: {type(cause).__name__}: {cause}")
        if isinstance(cause, LLMContextWindowExceedError):
            return CONTEXT_OVERFLOW
        return FAILED
    return _exit_status(conversation.state)


def _exit_status(state: Any) -> int:
    status = state.execution_status.value
    codes = [event.code for event in state.events if type(event).__name__ == "ConversationErrorEvent"]
    if status == "error" and codes[-1:] == ["MaxIterationsReached"]:
        return STEP_LIMIT
    if status not in ("finished", "stuck"):
        print(f"openhands: the conversation ended as {status}: {codes}")
    return {"finished": FINISHED, "stuck": STUCK}.get(status, FAILED)


def main() -> int:
    options = _parse_options()
    folder = Path(os.environ["SWE_RL_FOLDER"])
    base_url = os.environ["OPENAI_BASE_URL"]
    task = Path(os.environ["SWE_RL_TASK_FILE"]).read_text(encoding="utf-8")
    try:
        with sdk_environment(folder, urlsplit(base_url).hostname or ""):
            llm = _make_llm(options.dialect, base_url, os.environ["OPENAI_MODEL"], os.environ["OPENAI_API_KEY"])
    except (ImportError, SyntaxError) as error:
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"openhands: {sys.executable} (Python {version}) cannot load openhands-sdk and openhands-tools: {error}")
        return NO_SDK
    printer = Printer()
    conversation = _make_conversation(llm, options, folder, printer)
    try:
        return _run_conversation(conversation, task)
    finally:
        printer.flush()
        conversation.close()


if __name__ == "__main__":
    sys.exit(main())
