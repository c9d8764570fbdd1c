"""Reads rows of NeMo-Gym: each is a task, with `responses_create_params` for the model and the rest for the server.

Invariants:
- A row goes to its server as it is. Of `responses_create_params` the model sees `instructions`, `input` and `tools`.
- What cannot be said in a chat (images, for example) is refused with the file, the line and the place in the row.
- A row's id is the file's name and the digest of the row, so the same row has the same id wherever it lies.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.records import PlacedRecord, read_rows, refuse_duplicates

PARAMS = "responses_create_params"
# The server has these paths for itself. A model that calls one as a tool could score itself.
OWN_PATHS = frozenset({"seed_session", "close_session", "verify", "aggregate_metrics", "mcp", "reset", "step"})
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True)
class GymRow:
    """Holds a row, and what the model is shown of it in OpenAI's shape of a chat."""

    row_id: str
    where: str  # FILE, line 3
    row: Mapping[str, Any]  # The row as it was read.
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(str(tool["function"]["name"]) for tool in self.tools)


@functools.lru_cache(maxsize=8)
def read_gym_rows(path: str) -> tuple[GymRow, ...]:
    """Returns the rows of a file, in its order. Raises InstanceError naming the file, the line and what is wrong."""
    stem = re.sub(r"[^A-Za-z0-9_.]+", "_", Path(path).stem).strip("_.")[:60] or "row"
    rows = tuple(_read_row(placed, stem) for placed in read_rows(Path(path)))
    if not rows:
        raise InstanceError(f"env.dataset={path} has no row; give a file with one JSON object a line")
    refuse_duplicates((row.row_id, row.where) for row in rows)
    return rows


def find_gym_row(row_id: str, paths: Sequence[str]) -> GymRow:
    """Returns the row with an id in one of the files. Raises InstanceError."""
    for path in paths:
        for row in read_gym_rows(path):
            if row.row_id == row_id:
                return row
    raise InstanceError(f"{row_id} is no row of {' or '.join(paths)}")


def _read_row(placed: PlacedRecord, stem: str) -> GymRow:
    params = placed.record.get(PARAMS)
    if not isinstance(params, dict):
        raise InstanceError(f"{placed.where}: {PARAMS} is missing or no object, so it is no row of NeMo-Gym")
    where = f"{placed.where}, {PARAMS}"
    messages = _read_messages(params.get("input"), where)
    instructions = params.get("instructions")
    if isinstance(instructions, str) and instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    tools = params.get("tools") or []
    if not isinstance(tools, list):
        raise InstanceError(f"{where}.tools is no list")
    canonical = json.dumps(placed.record, sort_keys=True, default=str)
    digest = hashlib.sha256(canonical.encode("utf-8", "replace")).hexdigest()
    return GymRow(
        row_id=f"{stem}-{digest[:_DIGEST_CHARS]}",
        where=placed.where,
        row=placed.record,
        messages=tuple(messages),
        tools=tuple(_read_tool(tool, f"{where}.tools[{index}]") for index, tool in enumerate(tools)),
    )


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise InstanceError(f"{where} is no function; the server's own tools are functions of a name and parameters")
    name = tool.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InstanceError(f"{where}.name={name!r:.80} is no name of a tool")
    if name in OWN_PATHS:
        raise InstanceError(f"{where}.name={name} is a path that the server has for itself, and no tool of the model")
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise InstanceError(f"{where}.parameters is no object")
    description = str(tool.get("description") or "")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _read_messages(items: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise InstanceError(f"{where}.input is neither a text nor a list of messages")
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        _add_item(messages, item, f"{where}.input[{index}]")
    return messages


def _add_item(messages: list[dict[str, Any]], item: Any, where: str) -> None:
    """Adds an item of a Responses conversation to the messages of a chat. Raises InstanceError."""
    if not isinstance(item, dict):
        raise InstanceError(f"{where} is no object")
    kind = item.get("type") or "message"
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise InstanceError(f"{where}.role={item.get('role')!r:.40} is not one of {', '.join(_ROLES)}")
        messages.append({"role": role, "content": _read_text(item.get("content"), f"{where}.content")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        function = {"name": str(item.get("name")), "arguments": str(item.get("arguments"))}
        call = {"id": str(item.get("call_id")), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        said = _read_text(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": str(item.get("call_id")), "content": said})
    else:
        raise InstanceError(f"{where} is of the type {kind!r:.40}, which env=nemo_gym does not show to a model")


def _read_text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InstanceError(f"{where} is neither a text nor a list of texts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise InstanceError(f"{where}[{index}] is no text; env=nemo_gym shows texts alone to a model")
        texts.append(part["text"])
    return "".join(texts)
