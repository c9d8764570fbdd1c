"""This module tells whether two models speak of the same tokens, from their folders' files alone.

Invariants:
- Ids mean the same in both if the tokenizers' vocabularies and added tokens are equal, id for id. The output heads are
  as long, so that every id that one samples has a probability in the other.
- Rules ask this, and the code that loads the models asks it again.
"""

import json
from collections.abc import Callable
from typing import Any

# Both models' folders have these files.
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"


def vocabulary_problem(student: Callable[[str], str | None], teacher: Callable[[str], str | None]) -> str | None:
    """Says what differs, as half a sentence, or returns None if all is equal. Each argument reads a file of a model's
    folder by its name.

    What cannot be read is not compared. Raises ValueError if a file is no JSON.
    """
    sizes = [_read_json(side, CONFIG_FILE).get("vocab_size") for side in (student, teacher)]
    if None not in sizes and sizes[0] != sizes[1]:
        return f"has a vocabulary of {sizes[1]}, the policy of {sizes[0]}"
    mine, theirs = (_token_ids(_read_json(side, TOKENIZER_FILE)) for side in (student, teacher))
    if mine and theirs and mine != theirs:
        differing = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
        return f"gives {differing[0]!r} another id ({len(differing)} tokens differ)"
    return None


def _token_ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, dict):
        ids = dict(vocabulary)
    else:
        ids = {}
    return ids | {added["content"]: added["id"] for added in tokenizer.get("added_tokens", ())}


def _read_json(side: Callable[[str], str | None], name: str) -> dict[str, Any]:
    text = side(name)
    if text:
        content = json.loads(text)
    else:
        content = {}
    if isinstance(content, dict):
        return content
    return {}
