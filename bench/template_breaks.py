"""How often a chat template breaks a conversation: stock templates against ours, in turns of synthetic conversations.

    python -m bench.template_breaks --qwen3-coder chat_template.jinja

A turn breaks when its prompt does not start with the prompt before it plus what was sampled. `stock` renders the
client's messages anew each turn, as a server of chat completions does (compared as text: ids differ at least where text
does); `ours` is the gateway's session on token ids. Clients hand back messages as they were answered, reasoning too.
Prints the table of docs/templates.md.

Invariants:
- What is sampled is the text of bench/conversations.py; nothing is measured on other words than those.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.conversations import KINDS, TOOLS, TURNS, Kind, answered, heard, opening, said
from bench.stock_templates import CODER, render, stock_text
from swe_rl.gateway.session import Session
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.templates.qwen import IM_END
from swe_rl.model.tiny import build_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MODELS = {"qwen": "Qwen3", CODER: "Qwen3-Coder", "qwen_plain": "tiny"}
MODES = (("qwen", True), ("qwen", False), (CODER, False), ("qwen_plain", False))
_HEAD = "| model | thinking | the model says | observations | stock breaks | ours |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Breaks:
    """`stock` is None where its template was not given; `turns`: those that could break."""

    template: str
    thinking: bool
    kind: Kind
    stock: int | None
    ours: int
    turns: int = TURNS

    def line(self) -> str:
        thinking = ("on" if self.thinking else "off") if self.template == "qwen" else "none"
        stock = "?" if self.stock is None else f"{self.stock} of {self.turns}"
        cells = (MODELS[self.template], thinking, self.kind.value, self.kind.observations, stock, f"{self.ours}")
        return f"| {' | '.join(cells)} |"


def measure(coder_text: str | None) -> list[Breaks]:
    """Raises NoStockTemplateError."""
    tokenizer = build_tokenizer(["The bug is in lib/core.py. ls -la | head\n"] * 3, 400)
    return [
        Breaks(template, thinking, kind, stock, ours_breaks(tokenizer, template, kind, thinking=thinking))
        for template, thinking in MODES
        for kind in KINDS
        for stock in (_stock(template, coder_text, kind, thinking),)
    ]


def stock_breaks(text: str, template: str, kind: Kind, *, thinking: bool) -> int:
    """Turns in which the template `text` renders another beginning than was there; `template`: the format spoken."""
    messages, before, breaks = opening(), "", 0
    tools = TOOLS if kind.has_tools else ()
    for turn in range(TURNS + 1):
        prompt = render(text, messages, tools, thinking=thinking)
        breaks += not prompt.startswith(before)
        sampled = said(template, kind, turn, thinking=thinking)
        before = f"{prompt}{sampled}{IM_END}"
        reply = answered(template, kind, sampled)
        messages += [reply, *heard(kind, reply, turn)]
    return breaks


def ours_breaks(tokenizer: "PreTrainedTokenizerFast", template: str, kind: Kind, *, thinking: bool) -> int:
    """The same through the gateway's session: breaks that it names, and prompts that do not start as they have to."""
    session = Session(ChatRenderer(tokenizer, template=template, thinking=thinking))
    messages, before, breaks = opening(), (), 0
    tools = TOOLS if kind.has_tools else ()
    for turn in range(TURNS + 1):
        plan = session.plan_turn(messages, tools)
        sampled = said(template, kind, turn, thinking=thinking)
        ids = tuple(tokenizer.encode(f"{sampled}{IM_END}", add_special_tokens=False))
        reply = answered(template, kind, sampled)
        recorded = session.record(plan, ids, reply)
        breaks += recorded.break_kind is not None or plan.prompt_ids[: len(before)] != before
        before = (*plan.prompt_ids, *ids)
        messages += [reply, *heard(kind, reply, turn)]
    return breaks


def _stock(template: str, coder_text: str | None, kind: Kind, thinking: bool) -> int | None:
    text = coder_text if template == CODER else stock_text(template)
    return None if text is None else stock_breaks(text, template, kind, thinking=thinking)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--qwen3-coder", type=Path, metavar="FILE", help="that checkpoint's chat_template.jinja")
    file = parser.parse_args().qwen3_coder
    print(_HEAD)
    for found in measure(file.read_text(encoding="utf-8") if file else None):
        print(found.line())


if __name__ == "__main__":
    main()
