"""What a program prints of its session becomes turns."""

import json

from swe_rl.agent.program.session import read_session


def test_a_session_is_read_from_what_the_program_prints():
    lines = [
        "Warning: something",
        json.dumps({"type": "system", "subtype": "init"}),
        json.dumps({"type": "assistant", "message": {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I look."}]}}),
        json.dumps({"type": "assistant", "message": {"role": "assistant", "content": [
            {"type": "tool_use", "name": "edit", "input": {"a": "é"}}]}}),
        json.dumps({"type": "user", "message": {"role": "user", "content": [
            {"type": "tool_result", "content": "x" * 50}, {"type": "tool_result", "content": [{"text": "y"}]}]}}),
        json.dumps({"type": "assistant", "message": {"role": "assistant", "content": [
            {"type": "text", "text": "ok"}]}}),
        '{"type": "assistant", "message": 3}', "{", "[" * 100_000,
    ]  # fmt: skip
    first, last = read_session("\n".join(lines), 40)
    assert (first.message, first.command) == ("I look.", 'edit {"a": "é"}')
    assert first.observation and len(first.observation) <= 40 and first.observation.endswith("y")
    assert (last.index, last.message, last.command, last.observation) == (1, "ok", None, None)
