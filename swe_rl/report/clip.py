"""A trajectory made small enough for a page.

Invariants:
- Head and tail of a long text are kept, and what is left out is named in the text itself.
- The result never takes more than `max_bytes` as JSON, whatever the agent wrote.
"""

from collections.abc import Mapping
from typing import Any

from swe_rl.logger.disk import encode_json

Record = Mapping[str, Any]

_TEXT_LIMITS_CHARS = (8000, 3000, 1200, 400)
_MAX_FAILED, _MAX_PASSED = 100, 8
_PATCH_FACTOR = 3
_KEPT = (
    *("trajectory_id", "instance_id", "split", "step", "sample", "attempt", "status", "reward", "advantage"),
    *("trained", "in_baseline", "num_calls", "prompt_tokens", "sampled_tokens", "response_tokens", "prefix_breaks"),
)


def clipped_trajectory(record: Record, max_bytes: int) -> tuple[dict[str, Any], int]:
    """The record for the page and its size in bytes; tries milder cuts first."""
    for limit_chars in _TEXT_LIMITS_CHARS:
        clipped = _cut(record, limit_chars, max_turns=10**6)
        if (size := len(encode_json(clipped))) <= max_bytes:
            return clipped, size
    for max_turns in (40, 16, 6, 2):
        clipped = _cut(record, _TEXT_LIMITS_CHARS[-1], max_turns)
        if (size := len(encode_json(clipped))) <= max_bytes:
            return clipped, size
    bare = _cut(record, 80, 0)
    return bare, len(encode_json(bare))


def clip(value: Any, limit_chars: int) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if len(text) <= limit_chars:
        return text
    head, tail = limit_chars * 2 // 3, limit_chars // 3
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def _cut(record: Record, limit_chars: int, max_turns: int) -> dict[str, Any]:
    turns = [turn for turn in _list(record.get("turns")) if isinstance(turn, Mapping)]
    head = (max_turns + 1) // 2
    kept = turns if len(turns) <= max_turns else turns[:head] + turns[len(turns) - (max_turns - head) :]
    tests, num_tests, num_passed = _tests(record.get("tests"), limit_chars)
    return {key: _scalar(record.get(key)) for key in _KEPT} | {
        "turns": [_turn(turn, limit_chars) for turn in kept],
        "num_turns": len(turns),
        "patch": clip(record.get("patch"), limit_chars * _PATCH_FACTOR),
        "error": clip(record.get("error"), limit_chars) or None,
        "tests": tests,
        "num_tests": num_tests,
        "num_passed": num_passed,
        "cheating": {
            clip(key, 40): _scalar(value) for key, value in list(_mapping(record.get("cheating")).items())[:12]
        },
        "findings": [clip(name, 40) for name in _list(record.get("findings"))[:12]],
        "grade_log": clip(record.get("grade_log"), limit_chars) or None,
        "times_s": {clip(key, 40): _scalar(value) for key, value in list(_mapping(record.get("times_s")).items())[:12]},
    }


def _turn(turn: Record, limit_chars: int) -> dict[str, Any]:
    texts = {key: clip(turn.get(key), limit_chars) or None for key in ("message", "command", "observation")}
    rest = ("index", "exit_code", "format_error", "completion_s", "command_s")
    return texts | {key: _scalar(turn.get(key)) for key in rest}


def _tests(value: Any, limit_chars: int) -> tuple[list[tuple[str, bool]], int, int]:
    """Failed ones first, then a few that passed; with it how many there were and how many passed."""
    names = [(clip(str(name), 200), bool(passed)) for name, passed in _mapping(value).items()]
    failed, passed = ([one for one in names if one[1] is wanted] for wanted in (False, True))
    shown = failed[:_MAX_FAILED] + passed[:_MAX_PASSED] if limit_chars > 80 else []
    return shown, len(names), len(passed)


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return value if value is None or isinstance(value, bool | int) else clip(value, 300)


def _mapping(value: Any) -> Record:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
