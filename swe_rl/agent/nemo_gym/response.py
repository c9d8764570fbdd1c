"""Writes an attempt in the form that a resource server of NeMo-Gym verifies: an object of OpenAI's Responses.

Invariants:
- Reasoning, text and calls of a reply come in this order, then what the tools answered, as the model saw it.
- A call that was never sent to the server is not in it: a server may read its arguments again, and fail at them.
"""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def make_response(
    said: Sequence[Mapping[str, Any]],
    params: Mapping[str, Any],
    model: str,
    *,
    unsent: Collection[str | None] = (),
    is_cut: bool = False,
) -> dict[str, Any]:
    """Returns the response of what was said after a row's own messages.

    `unsent` has the ids of calls that were never made. `is_cut`: a limit cut the last reply.
    """
    output: list[dict[str, Any]] = []
    for message in said:
        if message["role"] == "assistant":
            output += _reply_items(message, unsent)
        elif message["role"] == "tool" and message["tool_call_id"] not in unsent:
            text = str(message["content"])
            output.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": text})
    if is_cut:
        ending: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    else:
        ending = {"status": "completed"}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": time.time(),
        "model": model,
        "output": output,
        "tools": params.get("tools") or [],
        "tool_choice": params.get("tool_choice") or "auto",
        "parallel_tool_calls": params.get("parallel_tool_calls") is not False,
        **ending,
    }


def _reply_items(message: Mapping[str, Any], unsent: Collection[str | None]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    reasoning = message.get("reasoning_content")
    if reasoning:
        summary = [{"type": "summary_text", "text": str(reasoning)}]
        items.append({"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": summary})
    calls = message.get("tool_calls") or []
    text = message.get("content") or ""
    if text or not calls:
        content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}]
        name = f"msg_{uuid.uuid4().hex}"
        items.append({"type": "message", "id": name, "role": "assistant", "status": "completed", "content": content})
    for call in calls:
        if call["id"] in unsent:
            continue
        function = call["function"]
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{uuid.uuid4().hex}",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": function["arguments"],
                "status": "completed",
            }
        )
    return items
