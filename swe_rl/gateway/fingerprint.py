"""Fingerprints of messages: what makes two of them the same to the model.

Invariants:
- An assistant message is compared as it was answered: content (without outer whitespace) and tool calls (arguments as
  JSON values). Reasoning, ids of tool calls and null fields are not compared: clients drop or rewrite them.
- Any other message is compared by role and exact text.
- A prefix's hash covers the tools and every message up to it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from swe_rl.model.templates.qwen import message_text, role_of

Fingerprint = bytes


def message_fingerprint(message: Mapping[str, Any]) -> Fingerprint:
    role, text = role_of(message), message_text(message.get("content"))
    parts: list[Any] = [role, text.strip() if role == "assistant" else text]
    if role == "assistant":
        parts += [_call(call) for call in message.get("tool_calls") or ()]
    return _digest(json.dumps(parts, sort_keys=True).encode())


def prefix_hashes(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[Fingerprint]:
    """Entry i covers the tools and the first i messages; one entry more than there are messages."""
    hashes = [_digest(json.dumps(list(tools or ()), sort_keys=True).encode())]
    for message in messages:
        hashes.append(extend_hash(hashes[-1], message))
    return hashes


def extend_hash(prefix: Fingerprint, message: Mapping[str, Any]) -> Fingerprint:
    return _digest(prefix + message_fingerprint(message))


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return [function.get("name"), "text", arguments]
    return [function.get("name"), "json", arguments]


def _digest(data: bytes) -> Fingerprint:
    return hashlib.blake2b(data, digest_size=16).digest()
