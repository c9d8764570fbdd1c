"""This module reads a chat template, and what it needs of the tokenizer, from the files of a model's folder.

Invariants:
- Only text is read; nothing is fetched, and no tokenizer is made.
- What is read is what transformers reads of the same files (a test compares).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.templates.own.probe import probed
from swe_rl.templates.own.sandbox import ChatTemplateError
from swe_rl.templates.own.template import OwnTemplate, Tokens
from swe_rl.templates.own.words import NO_TEMPLATE

_VARIABLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TemplateTexts:
    """Holds a model's chat template, and the one that it has for conversations with tools, if that is another one."""

    text: str
    with_tools: str | None = None


def read_texts(folder: Path) -> TemplateTexts | None:
    """Returns the folder's chat template, or None."""
    text = _text(folder / "chat_template.jinja")
    with_tools = _text(folder / "additional_chat_templates" / "tool_use.jinja")
    if text is None:
        named = _table(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(named, list):
            entries = [entry for entry in named if isinstance(entry, dict)]
            named = {str(entry.get("name")): entry.get("template") for entry in entries}
        return chosen_texts(named)
    return TemplateTexts(text, with_tools)


def chosen_texts(template: Any) -> TemplateTexts | None:
    """Returns the texts of a tokenizer's `chat_template`: a text, or texts by name; None if there is none."""
    if isinstance(template, Mapping):
        text = template.get("default") or next(iter(template.values()), None)
        with_tools = template.get("tool_use")
        if not isinstance(text, str):
            return None
        return TemplateTexts(text, with_tools if with_tools != text else None)
    if isinstance(template, str) and template:
        return TemplateTexts(template)
    return None


def read_tokens(folder: Path) -> Tokens:
    """Returns what the folder's files say of the tokenizer's special tokens."""
    settings = _table(folder / "tokenizer_config.json")
    variables = {name: _content(settings[name]) for name in _VARIABLES if settings.get(name)}
    added = _table(folder / "tokenizer.json").get("added_tokens")
    if not isinstance(added, list):
        by_id = settings.get("added_tokens_decoder")
        added = list(by_id.values()) if isinstance(by_id, dict) else []
    entries = [entry for entry in added if isinstance(entry, dict) and isinstance(entry.get("content"), str)]
    special = {entry["content"]: entry.get("special") is True for entry in entries}
    by_number = {entry.get("id"): entry["content"] for entry in entries}
    if not by_number.keys() - {None}:
        decoder = settings.get("added_tokens_decoder", {})
        by_number = {int(number): entry["content"] for number, entry in decoder.items()}
    stops = [by_number[number] for number in read_stop_ids(folder) if number in by_number]
    if "eos_token" in variables:
        stops.append(variables["eos_token"])
    return Tokens(special, variables, tuple(dict.fromkeys(stops)))


def read_stop_ids(folder: Path) -> list[int]:
    """Returns the ids of the tokens at which generation ends, by the model's generation_config.json or config.json."""
    for name in ("generation_config.json", "config.json"):
        ids = _table(folder / name).get("eos_token_id")
        if isinstance(ids, int):
            return [ids]
        if isinstance(ids, list):
            return [number for number in ids if isinstance(number, int)]
    return []


def own_template(folder: Path, *, thinking: bool) -> OwnTemplate:
    """Returns the folder's own chat template with its traits. Raises ChatTemplateError."""
    texts = read_texts(folder)
    if texts is None:
        raise ChatTemplateError(NO_TEMPLATE)
    return probed(texts.text, read_tokens(folder), thinking=thinking, with_tools=texts.with_tools)


def _content(token: Any) -> str:
    if isinstance(token, dict):
        return str(token.get("content"))
    return str(token)


def _table(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return content


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
