"""The state of one session: which ids it holds, and what a new request is to them.

Invariants:
- Nothing is ever encoded again: a request that goes on from a recorded reply gets that reply's prompt and sampled ids
  as they are, and only its new messages are rendered.
- Within a chain, `prompt[n + 1]` starts with `prompt[n] + sampled[n]`. Only the newest reply of a chain can be extended
  within it; anything else starts a new chain and has a name.
- Several conversations of one session (a sub-agent) may take turns; each stays in its own chain.
- Every reply can be gone on from. A request that is sent again once it was answered, while no other call with it is
  under way, is a retry: the reply before is superseded until something goes on from it. Of calls that ask the same at
  once none supersedes another.
- Chain and turn numbers are given when a completion is recorded, not when it is planned: of two calls in flight from
  the same reply, the first to finish extends the chain.
- Pure: no I/O, no clock. What is held grows with the new tokens, not with the prompts.
- Only `Draft.render` takes long; it touches nothing of the session and may run in another thread.
- Requests are compared by the hashes of their conversations (`gateway/conversation.py`).
- A session may begin with what another one sampled (`replay`), up to a token of a reply: those ids are part of its
  first prompt, none of them is a turn of its own, and what goes on from them extends the first chain.
- A turn costs what is new: ids are appended where the chain's ids stand. Of chains that were not used lately only the
  parts are held, and put together when one of them goes on.
"""

import heapq
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.conversation import Conversation, Fingerprint, Message, Tools, extend_hash, prefix_hashes
from swe_rl.gateway.errors import GatewayError
from swe_rl.gateway.trace import Break

_KEPT = 4  # chains whose ids are held in one piece: sub-agents take turns


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What the gateway pins for an opened session, whatever the client asks for."""

    max_turn_tokens: int
    max_trajectory_tokens: int
    max_prompt_tokens: int | None = None  # of the first prompt; None: as many as there is room for
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_calls: int | None = None  # replies; one more call is refused
    group_id: str | None = None  # sessions of one group begin with the same prompt


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of a session: `messages` up to a request, the ids of each of the assistant's among them, and those that the
    answer to the request begins with, as another session sampled them."""

    messages: Sequence[Message]
    sampled_ids: Sequence[Sequence[int]]
    begun_ids: Sequence[int] = ()


class Renderer(Protocol):
    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]: ...

    def extend(self, sampled_ids: Sequence[int], new_messages: Sequence[Message]) -> list[int]: ...


@dataclass(eq=False, slots=True)
class _Node:
    """One recorded completion: what its prompt adds to its parent's ids, and what was sampled."""

    parent: "_Node | None"
    delta_ids: "array[int]"
    sampled_ids: "array[int]"
    request: Fingerprint
    chain: int = 0
    turn: int | None = None  # None: replayed

    def ids(self) -> TokenIds:
        """Its prompt and what was sampled, put together."""
        parts: list[array[int]] = []
        node: _Node | None = self
        while node is not None:
            parts += [node.sampled_ids, node.delta_ids]
            node = node.parent
        ids = array("i")
        for part in reversed(parts):
            ids.extend(part)
        return TokenIds(ids)


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """A request that was looked up: what of it is new, and where it goes on from."""

    messages: Sequence[Message] = field(repr=False)  # all, or those after the reply that it goes on from
    _length: int  # how many are before them
    _parent: _Node | None = field(repr=False)
    _again: _Node | None = field(repr=False)  # the same request, answered before
    _conversation: Conversation = field(repr=False)

    @property
    def new_chars(self) -> int:
        """About as many as `render` has to encode."""
        if self._again is not None:
            return 0
        return sum(len(str(message.get("content"))) for message in self.messages)

    def render(self, renderer: Renderer) -> "array[int]":
        """What the prompt adds to the ids that it goes on from."""
        if self._again is not None:
            return self._again.delta_ids
        if self._parent is None:
            return array("i", renderer.start(self.messages, self._conversation.tools))
        return array("i", renderer.extend(self._parent.sampled_ids, self.messages))


@dataclass(frozen=True, eq=False, slots=True)
class TurnPlan:
    """`break_kind` is what is known so far; `Session.record` has the last word. `number` is the smallest that no turn
    recorded or in flight has: seeds are derived from it. `first`: the session has no turn before it."""

    prompt_ids: TokenIds
    break_kind: Break | None
    number: int
    first: bool
    _parent: _Node | None = field(repr=False)
    delta_ids: "array[int]" = field(repr=False)  # what is new in it, after the turn `base_turn`
    _conversation: Conversation | None = field(repr=False)
    _length: int = 0  # messages that the parent's conversation has
    _retried: _Node | None = field(repr=False, default=None)  # the reply that was there when it was asked for anew
    begun_ids: "array[int]" = field(repr=False, default_factory=lambda: array("i"))  # the prompt's end: of the answer

    @property
    def base_turn(self) -> int | None:
        """The turn of this session whose prompt and sampled ids it begins with."""
        return self._parent.turn if self._parent is not None else None

    @property
    def base_tokens(self) -> int:
        """Of its prompt and sampled ids, if it extends that turn within its chain, as far as is known."""
        extends = self.break_kind is None and self.base_turn is not None
        return len(self.prompt_ids) - len(self.delta_ids) if extends else 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """`base_turn`: the turn that it extends within its chain; the first `base_tokens` of its prompt are that turn's
    prompt and sampled ids."""

    turn: int
    chain: int
    break_kind: Break | None
    base_turn: int | None = None
    base_tokens: int = 0


class Session:
    """Turns of one session, each after the one that it continues."""

    def __init__(self, renderer: Renderer, *, first_turn: int = 0, first_chain: int = 0) -> None:
        self._renderer = renderer
        self._turn, self._chain = first_turn, first_chain
        self._next_number, self._freed_numbers = first_turn, list[int]()
        self._replies: dict[Fingerprint, _Node] = {}  # by hash of a request and its reply
        self._requests: dict[Fingerprint, _Node] = {}  # by hash of a request: its newest completion
        self._tips: dict[int, _Node] = {}  # by chain: the only reply that extends it
        self._newest: _Node | None = None
        self._ids: OrderedDict[_Node, TokenIds] = OrderedDict()  # of tips: prompt and sampled, used least lately first
        self._seen: set[Fingerprint] = set()  # of every prefix of every recorded conversation
        self._flying: Counter[Fingerprint] = Counter()  # by hash of a request: plans that did not end
        self._superseded: set[_Node] = set()
        self._begun: tuple[Fingerprint, array[int]] = (b"", array("i"))  # a request, and how its answers begin

    @property
    def superseded(self) -> tuple[int, int]:
        """Replies that are in no row, so far, as a retry took their place; and their tokens."""
        return len(self._superseded), sum(len(node.sampled_ids) for node in self._superseded)

    def replay(self, beginning: Beginning) -> int:
        """Begins with what another session had said by then; returns the tokens of the first prompt. What is between
        the replies is rendered as for any call.

        Raises GatewayError for a session that was asked before, or for what is no conversation.
        """
        messages, before, line = beginning.messages, 0, list[_Node]()
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if not self._fresh or 0 in places or len(messages) - 1 in places or len(places) != len(beginning.sampled_ids):
            raise GatewayError("a session can begin with earlier replies only before its first call, one a message")
        hashes = prefix_hashes(messages, None)
        for place, ids in zip(places, beginning.sampled_ids, strict=True):
            node, new = line[-1] if line else None, messages[before:place]
            delta = self._renderer.start(new, ()) if node is None else self._renderer.extend(node.sampled_ids, new)
            line.append(_Node(node, array("i", delta), array("i", ids), hashes[place], self._chain))
            self._replies[hashes[place + 1]] = line[-1]
            before = place + 1
        if line:
            self._seen.update(hashes[1 : before + 1])
            self._ids[line[-1]] = line[-1].ids()
            self._tips[self._chain], self._chain = line[-1], self._chain + 1
        self._begun = hashes[-1], array("i", beginning.begun_ids)
        return len(line[0].delta_ids) if line else len(self._renderer.start(messages, ()))

    @property
    def _fresh(self) -> bool:
        return self._turn == 0 and not self._begun[0]

    def plan_apart(self, prompt_ids: tuple[int, ...]) -> TurnPlan:
        """Of ids that a client brings: nothing is rendered, and no turn of messages continues it."""
        return TurnPlan(TokenIds(prompt_ids), None, self._take_number(), self._fresh, None, array("i"), None)

    def record_apart(self) -> Recorded:
        """A chain of its own, of a turn planned so."""
        turn, self._turn = self._turn, self._turn + 1
        chain, self._chain = self._chain, self._chain + 1
        return Recorded(turn, chain, None)

    def plan_turn(self, messages: Sequence[Message], tools: Tools | None = None) -> TurnPlan:
        """Every plan must end in `record` or `release`."""
        draft = self.draft(Conversation.of(messages, tools))
        return self.plan(draft, draft.render(self._renderer))

    def draft(self, conversation: Conversation) -> Draft:
        again = self._requests.get(conversation.hashes[-1])
        if again is not None:
            return Draft((), len(conversation.hashes) - 1, again.parent, again, conversation)
        parent, length = self._deepest(conversation.hashes)
        return Draft(conversation.since(length), length, parent, None, conversation)

    def prompt_tokens(self, draft: Draft, delta_ids: "array[int]") -> int:
        """Of a plan that would be made of it; nothing is planned."""
        return len(self._ids_of(draft._parent)) + len(delta_ids)

    def plan(self, draft: Draft, delta_ids: "array[int]") -> TurnPlan:
        """Of what `draft.render` gave. Every plan must end in `record` or `release`."""
        number, first = self._take_number(), self._fresh
        parent, conversation, request = draft._parent, draft._conversation, draft._conversation.hashes[-1]
        begun_ids = self._begun[1] if request == self._begun[0] else array("i")
        if draft._again is None:  # else they are in there
            delta_ids = delta_ids + begun_ids
        prompt_ids = self._ids_of(parent).extended(delta_ids)
        retried = None if self._flying[request] else draft._again
        self._flying[request] += 1
        kind = self._break(parent, conversation, retried)
        length = draft._length
        return TurnPlan(prompt_ids, kind, number, first, parent, delta_ids, conversation, length, retried, begun_ids)

    def record(self, plan: TurnPlan, sampled_ids: Sequence[int], reply: Message) -> Recorded:
        """`reply` is the assistant message that the client is answered. What it raises leaves nothing changed."""
        assert plan._conversation is not None, "a plan of messages"
        kind, hashes = self._break(plan._parent, plan._conversation, plan._retried), plan._conversation.hashes
        node = _Node(plan._parent, plan.delta_ids, array("i", sampled_ids), hashes[-1])
        head = extend_hash(hashes[-1], reply)
        base_turn, base_tokens = None, 0
        if kind is None and plan._parent is not None:
            node.chain, base_turn = plan._parent.chain, plan._parent.turn
            base_tokens = 0 if base_turn is None else len(plan.prompt_ids) - len(plan.delta_ids)
            self._superseded.discard(plan._parent)
        else:
            node.chain, self._chain = self._chain, self._chain + 1
        if kind is Break.duplicate and self._newest is not None:
            self._superseded.add(self._newest)
        self._landed(hashes[-1])
        self._replies[head] = self._requests[node.request] = self._tips[node.chain] = self._newest = node
        self._seen.update(hashes[max(1, plan._length) :], (head,))  # its parent's are in there
        self._hold(node, plan)
        node.turn, self._turn = self._turn, self._turn + 1
        return Recorded(self._turn - 1, node.chain, kind, base_turn, base_tokens)

    def release(self, plan: TurnPlan) -> None:
        """The plan came to nothing: failed, or the client went away. Who asks again has its number, and its seed."""
        heapq.heappush(self._freed_numbers, plan.number)
        if plan._conversation is not None:
            self._landed(plan._conversation.hashes[-1])

    def _landed(self, request: Fingerprint) -> None:
        self._flying[request] -= 1
        if not self._flying[request]:
            del self._flying[request]

    def _ids_of(self, node: _Node | None) -> TokenIds:
        if node is None:
            return TokenIds()
        ids = self._ids.get(node)
        return node.ids() if ids is None else ids

    def _hold(self, node: _Node, plan: TurnPlan) -> None:
        """In place of what it goes on from."""
        if plan._parent is not None:
            self._ids.pop(plan._parent, None)
        self._ids[node] = plan.prompt_ids.extended(node.sampled_ids)
        if len(self._ids) > _KEPT:
            self._ids.popitem(last=False)

    def _take_number(self) -> int:
        if self._freed_numbers:
            return heapq.heappop(self._freed_numbers)
        self._next_number += 1
        return self._next_number - 1

    def _deepest(self, hashes: Sequence[Fingerprint]) -> tuple[_Node | None, int]:
        """The recorded reply that the longest prefix of the request ends with, and that prefix's length."""
        for length in range(len(hashes) - 1, 0, -1):
            node = self._replies.get(hashes[length])
            if node is not None:
                return node, length
        return None, 0

    def _break(self, parent: _Node | None, conversation: Conversation, retried: _Node | None) -> Break | None:
        """Asked twice, when a turn is planned and when it is recorded: another call may have finished in between."""
        hashes = conversation.hashes
        if self._newest is None or (parent is not None and self._is_tip(parent)):
            return None
        known = self._requests.get(hashes[-1])
        if known is not None:
            # Only the newest reply of the newest chain is superseded: whoever makes rows finds it right before this
            # one, at the end of the chain before.
            if retried is known is self._newest and known.chain == self._chain - 1:
                return Break.duplicate
            return Break.truncated if retried is not None and not self._is_tip(known) else Break.branch
        if hashes[-1] in self._seen:
            return Break.truncated
        kept = max((i for i, prefix in enumerate(hashes) if prefix in self._seen), default=0)
        rewritten = conversation.assistant[kept]
        answered = hashes[kept] in self._replies or hashes[kept] in self._requests
        return Break.branch if answered and not rewritten else Break.prefix_changed

    def _is_tip(self, node: _Node) -> bool:
        return self._tips.get(node.chain) is node
