"""Chat templates as the checkpoints have them, for comparison with ours.

    python -m tests.support.stock_templates --qwen3-coder chat_template.jinja --out tests/model/qwen3_coder_stock.json

writes what Qwen3-Coder's template renders for the conversations of tests/support/conversations.py, and tests compare.
Qwen3's are those that the package `trl` carries; Qwen3-Coder's has to be given: it is the file `chat_template.jinja` of
the checkpoint, and https://github.com/vllm-project/vllm has it as `examples/tool_chat_template_qwen3coder.jinja`.

Invariants:
- `trl` is never imported, only files of it are read.
- A conversation is rendered as a server does it: by transformers, tool arguments as objects.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from swe_rl.files.disk import write_text_atomic
from tests.support.conversations import KINDS, TOOLS, conversation, opening

FILES = {"qwen": "qwen3.jinja", "qwen_plain": "qwen3_instruct_2507.jinja"}  # of trl, by the name of ours
CODER = "qwen_coder"


class NoStockTemplateError(RuntimeError):
    """The package that carries the template is not installed."""


def stock_text(template: str) -> str:
    """The stock template that `template` of swe_rl stands for. Raises NoStockTemplateError."""
    try:
        path = metadata.distribution("trl").locate_file(f"trl/chat_templates/{FILES[template]}")
        return Path(str(path)).read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, FileNotFoundError, KeyError) as error:
        raise NoStockTemplateError(f"no stock template for {template}: pip install 'trl>=1.16,<2'") from error


def render(
    text: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    thinking: bool,
    prompt: bool = True,
) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    found: Any = render_jinja_template(
        conversations=[[as_objects(message) for message in messages]],
        tools=[dict(tool) for tool in tools] or None,
        chat_template=text,
        add_generation_prompt=prompt,
        enable_thinking=thinking,
    )
    return str(found[0][0])  # (texts, spans)


def as_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """Tool arguments as objects: OpenAI's wire has JSON text, templates take objects."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def coder_renders(text: str) -> dict[str, str]:
    """What Qwen3-Coder's template `text` renders, by kind: the prompt after the last turn of each conversation."""
    renders = {"sha256 of the template": hashlib.sha256(text.encode()).hexdigest()}
    renders["no system message"] = render(text, opening()[1:], TOOLS, thinking=False)
    for kind in KINDS:
        messages = conversation(CODER, kind, thinking=False)
        renders[kind.value] = render(text, messages, TOOLS if kind.has_tools else (), thinking=False)
    return renders


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--qwen3-coder", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    renders = coder_renders(options.qwen3_coder.read_text(encoding="utf-8"))
    write_text_atomic(options.out, json.dumps(renders, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
