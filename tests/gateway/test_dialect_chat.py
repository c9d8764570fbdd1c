"""What a chat completion reads of a reply that comes back, and what it tells of single tokens."""

import orjson

from swe_rl.engine.engine import Completion
from swe_rl.gateway.conversation import extend_hash
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.reply import logprobs_of
from swe_rl.gateway.request import Arrived

USER = {"role": "user", "content": "Fix the bug."}


def test_thoughts_within_a_replys_content_are_its_reasoning():
    """Else the reply would be another one than that which was sampled."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Why?"}]}, {"type": "text", "text": "So."}]
    body = orjson.dumps({"messages": [USER, {"role": "assistant", "content": parts}, USER]})
    request = ChatCompletions().parse(body, Arrived("tiny"))
    reply = request.conversation.since(0)[1]
    assert reply == {"role": "assistant", "content": "So.", "reasoning_content": "Why?"}
    assert extend_hash(b"", reply) == extend_hash(b"", {"role": "assistant", "content": "So."})


def test_a_character_over_several_tokens_can_be_put_together_from_their_bytes(renderer):
    ids = renderer.reply({"role": "assistant", "content": "größe 😀"})
    completion = Completion(tuple(ids), (-0.5,) * len(ids), "stop", 0)
    told = logprobs_of(renderer, completion)["content"]
    assert len(told) == len(ids)
    assert bytes(byte for one in told[:-1] for byte in one["bytes"]).decode() == "größe 😀"
