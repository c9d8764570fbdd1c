"""Recorded replies are given to the prompts that they were sampled for, and to no other."""

from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.chains.recall import Recall
from swe_rl.gateway.chains.sampled_reply import recalled_reply
from swe_rl.gateway.trace import Trace


def _recorded() -> list[Trace]:
    """Three turns of one conversation, and a compaction that begins anew."""
    first = Trace("s", 0, 0, [1, 2], [3, 4], [-0.5, -0.25], [7, 7], "stop", queue_s=2.0, held_s=0.5, engine="e")
    second = Trace("s", 1, 0, [5], [6], [-1.0], [8], "length", base_turn=0, base_tokens=4)
    third = Trace("s", 2, 1, [1, 2, 9], [10, 11, 12], [-1.0, -2.0, -3.0], [8, 8, 9], "stop", parent_turn=1)
    return [first, second, third]


def test_each_prompt_gets_its_own_reply_as_it_was_sampled():
    recall = Recall(_recorded())
    first = recall.take(TokenIds((1, 2)))
    assert first is not None
    reply = recalled_reply(first)
    assert reply.recalled and reply.engine == "e" and reply.held_s == 0.5
    completion = reply.completion
    assert (completion.token_ids, completion.logprobs, completion.finish_reason) == ((3, 4), (-0.5, -0.25), "stop")
    assert (completion.weight_versions, completion.queue_s) == ((7, 7), 1.5)
    second = recall.take(TokenIds((1, 2, 3, 4, 5)))
    assert second is not None and recalled_reply(second).completion.weight_version == 8
    third = recall.take(TokenIds((1, 2, 9)))
    assert third is not None and recalled_reply(third).completion.weight_versions == (8, 8, 9)
    assert recall.take(TokenIds((1, 2, 9, 10, 11, 12, 13))) is None
    assert (recall.recalled_turns, recall.recalled_tokens, recall.dropped_tokens) == (3, 6, 0)


def test_another_prompt_ends_it_for_good():
    recall = Recall(_recorded())
    assert recall.take(TokenIds((1, 2))) is not None
    assert recall.take(TokenIds((1, 2, 3, 4, 99))) is None
    assert recall.take(TokenIds((1, 2, 3, 4, 5))) is None  # What comes after another turn is another conversation.
    assert (recall.recalled_tokens, recall.dropped_tokens) == (2, 4)


def test_a_prompt_that_only_begins_alike_is_another_one():
    assert Recall(_recorded()).take(TokenIds((1, 2, 3))) is None
    assert Recall(_recorded()).take(TokenIds((1,))) is None
