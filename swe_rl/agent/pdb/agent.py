"""This is the debugging agent: bash, view, grep, edit, submit, and pdb with a session that stays.

Invariants:
- Tools are called by functions of the chat protocol, or (prompts for small models) by fenced blocks; what a call gets
  wrong is answered, not raised, and every call has its answer.
- The tools offered never change within an attempt: prompts only grow.
- The agent's budget holds its completions and its commands; waiting for a place to run a command is not in it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from swe_rl.agent.agent import Exit, Turn
from swe_rl.agent.client import CalledTool, ChatReply
from swe_rl.agent.command import parse_command
from swe_rl.agent.conversation import Conversation, TalkingAgent
from swe_rl.agent.pdb.actions import Workbench
from swe_rl.agent.pdb.tools import EDITS_BEFORE_PDB, TOOLS, ToolArgumentError, tools_of
from swe_rl.agent.prompts import FORMAT_REMINDER, SYSTEM_PROMPTS, reminder_after
from swe_rl.errors import UserError

# The constants below are the words that the debugging agent gives its model, by `agent.system_prompt` and
# `agent.tools`. A tool that the agent does not have is not spoken of, so that an ablation differs in nothing else.
# `pdb_short` without the debugger is, to the byte, the prompt that the tiny model was warm-started on.
CALL_REMINDER = "Call one of the tools. `submit` hands in what you have changed."

_STANDARD = """\
You are a software engineer who solves one issue in a code repository. You work through tools: say in a sentence or \
two what you are about to do and why, then call one of them, and read what it answers.

Rules.
- Paths are relative to the root of the repository, where commands start. Each command runs in a new shell: files \
carry over, `cd` and variables do not.
- There is no terminal and no network. A command that runs too long is stopped; long output is cut in the middle.
- Fix the cause in the source code. Do not change existing tests and do not add files that the fix does not need.

Way of working.
1. Find the code that the issue speaks of and read it.
2. Reproduce the fault with a test or a small script.
{debugging}3. Make the smallest change that repairs it.
4. Run your reproduction and the tests nearby again, and think of edge cases.
5. When you are sure, and only then, call `submit`. Nothing can be done after it."""
_DEBUGGING = """\
   Look at it with `pdb` where reading is not enough: set breakpoints where the state matters, continue to them, print \
what you suspect. The session stays from call to call, one command each; its breakpoints stay when an edit starts the \
program again. Give `entrypoint` to debug a certain test.
"""
_LATER = "   The debugger can be used once you have made {edits} edits.\n"
_SHORT_DEBUGGING = " A ```pdb block holds one debugger command."


@dataclass(frozen=True, slots=True)
class DebuggingPrompt:
    text: str
    by_blocks: bool  # Tools are called by fenced blocks with their names, not by function calls.


def debugging_prompt(name: str, tools: str) -> DebuggingPrompt:
    """Returns the agent's words for its model. Raises UserError for an unknown name."""
    has_debugger = TOOLS[tools]
    edits = EDITS_BEFORE_PDB.get(tools, 0)
    if name == "pdb_short":
        return DebuggingPrompt(SYSTEM_PROMPTS["short"] + (_SHORT_DEBUGGING if has_debugger else ""), by_blocks=True)
    if name == "pdb_standard":
        debugging = _DEBUGGING if has_debugger else ""
        if edits:
            debugging += _LATER.format(edits=edits)
        return DebuggingPrompt(_STANDARD.format(debugging=debugging), by_blocks=False)
    raise UserError(f"agent.system_prompt={name!r} is not known to agent=pdb; choose pdb_standard or pdb_short")


class PdbAgent(TalkingAgent):
    """Acts by tools, with a debugger among them. Raises UserError for an unknown prompt or set of tools."""

    name = "pdb"

    def _prepare(self) -> None:
        self._by_name = tools_of(self._config.tools)
        prompt = debugging_prompt(self._config.system_prompt, self._config.tools)
        self._prompt = prompt.text
        self._by_blocks = prompt.by_blocks
        self._blocks = tuple(name for name in ("bash", "pdb") if name in self._by_name)
        if not prompt.by_blocks:
            self._tools = tuple(tool.schema() for tool in self._by_name.values())

    def _acting(self, talk: Conversation) -> Callable[[ChatReply, Turn], Awaitable[Exit | None]]:
        return partial(self._turn, talk, Workbench(talk, self._config))

    async def _turn(self, talk: Conversation, bench: Workbench, reply: ChatReply, turn: Turn) -> Exit | None:
        reached = await (self._block if self._by_blocks else self._calls)(talk, bench, reply, turn)
        if reached is None and talk.budget.is_spent:
            return Exit.AGENT_TIMEOUT
        return reached

    async def _block(self, talk: Conversation, bench: Workbench, reply: ChatReply, turn: Turn) -> Exit | None:
        parsed = parse_command(reply.content, self._blocks)
        turn.command = parsed.command
        if parsed.command is None:
            return talk.answer_format_error(turn, FORMAT_REMINDER, self._config.max_format_errors)
        talk.format_errors_in_a_row = 0
        if parsed.submit:
            return Exit.SUBMITTED
        if parsed.language == "pdb":
            starts = parsed.command.lstrip().startswith("python")
            call = bench.pdb(turn, "", parsed.command) if starts else bench.pdb(turn, parsed.command)
        else:
            call = bench.bash(turn, parsed.command)
        turn.observation = await call
        if turn.observation is None:
            return Exit.AGENT_TIMEOUT
        talk.say("user", turn.observation)
        return None

    async def _calls(self, talk: Conversation, bench: Workbench, reply: ChatReply, turn: Turn) -> Exit | None:
        if not reply.tool_calls:
            return talk.answer_format_error(turn, CALL_REMINDER, self._config.max_format_errors)
        talk.format_errors_in_a_row = 0
        turn.command = "\n".join(f"{call.name} {call.arguments}" for call in reply.tool_calls)
        answers: list[str] = []
        for call in reply.tool_calls:
            if call.name == "submit":
                turn.observation = "\n".join(answers) or None
                return Exit.SUBMITTED
            answer = await self._answer(bench, turn, call)
            if answer is None:
                return Exit.AGENT_TIMEOUT
            answers.append(answer)
            talk.say("tool", answer, tool_call_id=call.call_id)
        turn.observation = "\n".join(answers)
        return None

    async def _answer(self, bench: Workbench, turn: Turn, call: CalledTool) -> str | None:
        tool = self._by_name.get(call.name)
        if tool is None:
            return f"there is no tool {call.name!r}; there are {', '.join(self._by_name)}"
        try:
            arguments = tool.arguments(call.arguments)
        except ToolArgumentError as error:
            return reminder_after(str(error), turn.cut_tokens)
        action: Callable[..., Awaitable[str | None]] = getattr(bench, tool.name)
        return await action(turn, **arguments)
