"""A session gives the turns that its definition gives, whatever it remembers to be quick."""

import json
from dataclasses import dataclass, field

import orjson
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.gateway.conversation import KnownBodies, extend_hash, prefix_hashes
from swe_rl.gateway.dialects.chat import ChatCompletions
from swe_rl.gateway.request import Arrived
from swe_rl.gateway.session import Session
from swe_rl.gateway.trace import Break


@dataclass(eq=False)
class Node:
    parent: object
    prompt: tuple
    sampled: tuple
    request: bytes
    chain: int = 0
    turn: int = 0


@dataclass
class Definition:
    """A session as it is defined: whole requests, whole prompts, nothing shared and nothing kept but what counts."""

    renderer: object
    replies: dict = field(default_factory=dict)
    requests: dict = field(default_factory=dict)
    tips: dict = field(default_factory=dict)
    seen: set = field(default_factory=set)
    newest: object = None
    flying: list = field(default_factory=list)
    turns: int = 0
    chains: int = 0

    def plan(self, messages, tools):
        *plan, retried = self._planned(messages, tools)
        alone = plan[1][-1] not in self.flying
        self.flying.append(plan[1][-1])
        return *plan, retried if alone else None

    def release(self, plan):
        self.flying.remove(plan[1][-1])

    def _planned(self, messages, tools):
        hashes = prefix_hashes(messages, tools)
        again = self.requests.get(hashes[-1])
        if again is not None:
            return messages, hashes, again.parent, again.prompt, again
        for length in range(len(messages), 0, -1):
            parent = self.replies.get(hashes[length])
            if parent is not None:
                new = self.renderer.extend(parent.sampled, messages[length:])
                return messages, hashes, parent, parent.prompt + parent.sampled + tuple(new), None
        return messages, hashes, None, tuple(self.renderer.start(messages, tools)), None

    def break_of(self, plan):
        messages, hashes, parent, _, retried = plan
        if self.newest is None or (parent is not None and self.tips.get(parent.chain) is parent):
            return None
        known = self.requests.get(hashes[-1])
        if known is not None:
            if retried is known is self.newest:
                return Break.duplicate
            return Break.truncated if retried is not None and self.tips[known.chain] is not known else Break.branch
        if hashes[-1] in self.seen:
            return Break.truncated
        kept = max((i for i, prefix in enumerate(hashes) if prefix in self.seen), default=0)
        answered = hashes[kept] in self.replies or hashes[kept] in self.requests
        rewritten = messages[kept]["role"] == "assistant"
        return Break.branch if answered and not rewritten else Break.prefix_changed

    def record(self, plan, sampled, reply):
        _, hashes, parent, prompt, _ = plan
        kind = self.break_of(plan)
        self.release(plan)
        node = Node(parent, prompt, tuple(sampled), hashes[-1])
        base = (None, 0)
        if kind is None and parent is not None:
            node.chain, base = parent.chain, (parent.turn, len(parent.prompt) + len(parent.sampled))
        else:
            node.chain, self.chains = self.chains, self.chains + 1
        head = extend_hash(hashes[-1], reply)
        self.replies[head] = self.requests[node.request] = self.tips[node.chain] = self.newest = node
        self.seen.update(hashes[1:], (head,))
        node.turn, self.turns = self.turns, self.turns + 1
        return node.turn, node.chain, kind, *base


TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
_words = st.sampled_from(["x", 'say "x"', "a\nb", "]}", " pad "])
_step = st.fixed_dictionaries(
    {
        "goes_on_from": st.sampled_from([0, 0, 0, 0, 1, 1, 2, 4, 9]),  # of the answered conversations, the newest first
        "new": st.lists(st.tuples(st.sampled_from(["user", "tool"]), _words), max_size=2),
        "cut": st.sampled_from([0, 0, 0, 0, 1, 2, 3]),  # messages left out at the end
        "edit": st.sampled_from([None, None, None, None, 0, 1, 2, 5]),  # a message that is rewritten
        "tools": st.sampled_from([0, 0, 0, 1]),
        "layout": st.integers(0, 3),
        "sampled": st.lists(st.integers(260, 300), min_size=1, max_size=3),
        "reply": _words,
        "call": st.booleans(),
        "fate": st.sampled_from(["answered"] * 4 + ["failed", "late", "late"]),
    }
)


def body(messages, tools, layout):
    fields = {"messages": messages, "model": "m", **({"tools": tools} if tools else {})}
    if layout == 1:
        return json.dumps({"max_tokens": 5, **dict(reversed(fields.items()))}).encode()
    return json.dumps(fields).encode() if layout == 2 else orjson.dumps(fields)


def reply_of(step):
    message = {"role": "assistant", "content": step["reply"]}
    if step["call"]:
        message["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    return message


class Both:
    """The session as the gateway drives it, from bytes, beside its definition."""

    def __init__(self, renderer):
        self.renderer = renderer
        self.session, self.definition, self.known = Session(renderer), Definition(renderer), KnownBodies()

    def plan(self, messages, tools, layout):
        request = ChatCompletions().parse(body(messages, tools, layout), Arrived("m", self.known, "s"))
        self.known.keep("s", request.sent)
        draft = self.session.draft(request.conversation)
        plan = self.session.plan(draft, draft.render(self.renderer))
        expected = self.definition.plan(messages, tools)
        assert tuple(plan.prompt_ids) == expected[3] == tuple(json.loads(plan.prompt_ids.json()))
        assert plan.break_kind == self.definition.break_of(expected)
        return plan, expected

    def record(self, plan, expected, step):
        recorded = self.session.record(plan, step["sampled"], reply_of(step))
        assert self.definition.record(expected, step["sampled"], reply_of(step)) == (
            recorded.turn,
            recorded.chain,
            recorded.break_kind,
            recorded.base_turn,
            recorded.base_tokens,
        )
        assert tuple(plan.prompt_ids) == expected[3]


def asked(step, answered):
    """A conversation that goes on, is cut or is rewritten."""
    messages = list(answered[-1 - step["goes_on_from"] % len(answered)])
    messages = messages[: max(1, len(messages) - step["cut"])]
    messages += [{"role": role, "content": text} for role, text in step["new"]]
    if step["edit"] is not None and step["edit"] < len(messages):
        messages[step["edit"]] = {**messages[step["edit"]], "content": "rewritten"}
    return messages


@given(st.lists(_step, max_size=25))
def test_plans_breaks_and_ids_are_those_of_the_definition(renderer, steps):
    """Edits of history, branches, retries, sub-agents, calls in flight side by side, calls that come to nothing."""
    both, waiting = Both(renderer), []
    answered = [[{"role": "system", "content": "s"}, {"role": "user", "content": name}] for name in "abcdef"]
    for step in steps:
        messages = asked(step, answered)
        plan, expected = both.plan(messages, TOOLS if step["tools"] else None, step["layout"])
        if step["fate"] == "failed":
            both.session.release(plan)
            both.definition.release(expected)
        elif step["fate"] == "late":
            waiting.append((plan, expected, step, messages))
        else:
            both.record(plan, expected, step)
            answered.append([*messages, reply_of(step)])
        if len(waiting) > 2:
            late_plan, late_expected, late, messages = waiting.pop(0)
            both.record(late_plan, late_expected, late)
            answered.append([*messages, reply_of(late)])


def test_a_long_conversation_costs_its_new_messages(renderer, monkeypatch):
    """Each turn the renderer sees what is new, and no prompt is put together from its parts."""
    both, messages = Both(renderer), [{"role": "user", "content": "begin"}]
    step = {"sampled": [300, 2], "reply": "r", "call": False}
    put_together = []
    monkeypatch.setattr("swe_rl.gateway.chains.draft.Node.ids", lambda node: put_together.append(node))
    for turn in range(60):
        plan, expected = both.plan(messages, None, 0)
        assert turn == 0 or len(plan.delta_ids) < 40
        both.record(plan, expected, step)
        messages = [*messages, reply_of(step), {"role": "user", "content": f"{turn}"}]
    assert put_together == []
