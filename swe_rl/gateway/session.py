"""A session's state: the token ids that it holds, and how a new request relates to them.

Invariants:
- Nothing is ever encoded again: a request that goes on from a recorded reply gets that reply's prompt and sampled ids
  as they are, and only its new messages are rendered.
- Within a chain, `prompt[n + 1]` starts with `prompt[n] + sampled[n]`. Only the newest reply of a chain can be extended
  within it. Anything else starts a new chain, and `Break` names the reason.
- Where the chat template would write earlier turns otherwise, the prompt is rendered whole (`Draft.settled`).
- Several conversations of one session (a sub-agent) may take turns; each stays in its own chain.
- A request can go on from every reply. A request that is sent again once it was answered, while no other call with it
  is under way, is a retry: the reply before is superseded until something goes on from it. If calls ask the same at
  once, none supersedes another.
- Chain and turn numbers are given when a completion is recorded, not when it is planned: of two calls in flight from
  the same reply, the first to finish extends the chain.
- A session does no I/O and reads no clock. What it holds grows with the new tokens, not with the prompts.
- Only `Draft.settled` and `Draft.render` take long; they touch nothing of the session and may run in another thread.
- Requests are compared by the hashes of their conversations (`gateway/conversation.py`).
- A turn costs what is new: ids are appended where the chain's ids stand. For chains that were not used lately only the
  parts are held, and they are put together when one of the chains goes on.
"""

import heapq
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.conversation import Fingerprint, Message, RequestMessages, Tools, extend_hash
from swe_rl.gateway.trace import Break

# The ids of so many chains are held in one piece. One is enough for one conversation, but sub-agents take turns.
_KEPT = 4
# A number, true or null in a message counts for so many characters.
_VALUE_CHARS = 32


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Holds what the gateway pins for an opened session, whatever the client asks for."""

    max_turn_tokens: int
    max_trajectory_tokens: int
    max_prompt_tokens: int | None = None  # The first prompt is limited to this, or to the room that there is.
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_calls: int | None = None  # The session gets so many replies; one more call is refused.
    # Sessions of one group begin with the same prompt, so a router may put them on the engine that has it cached.
    group_id: str | None = None


class Renderer(Protocol):
    """Has the methods of `ChatRenderer` that a session needs."""

    @property
    def rewrites(self) -> bool: ...

    def keeps(
        self,
        before: Sequence[Message],
        reply: Message,
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> bool: ...

    def start(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        most_tokens: int | None = None,
    ) -> list[int]: ...

    def extend(
        self, sampled_ids: Sequence[int], new_messages: Sequence[Message], most_tokens: int | None = None
    ) -> list[int]: ...

    def count_start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> int: ...

    def count_extend(self, sampled_ids: Sequence[int], new_messages: Sequence[Message]) -> int: ...


@dataclass(eq=False, slots=True)
class _Node:
    """Holds a recorded completion: what its prompt adds to its parent's ids, and what was sampled."""

    parent: "_Node | None"
    delta_ids: "array[int]"
    sampled_ids: "array[int]"
    request: Fingerprint
    chain: int = 0
    turn: int | None = None  # A reply that is not recorded yet has none.

    def ids(self) -> TokenIds:
        """Joins the ids of the whole prompt and of what was sampled after it."""
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
    """Holds a request that was looked up: which of its messages are new, and which reply it goes on from."""

    # Has all messages, or those after the reply that the request goes on from. `_length` messages are before them.
    messages: Sequence[Message] = field(repr=False)
    _length: int  # So many messages are before them.
    _parent: _Node | None = field(repr=False)
    _again: _Node | None = field(repr=False)  # The same request was answered before, by this reply.
    _conversation: RequestMessages = field(repr=False)
    # The chat template changes what was there before the new messages, so the prompt begins anew.
    _rewritten: bool = False

    def settled(self, renderer: Renderer) -> "Draft":
        """Returns this draft, or one that begins anew where the template changes earlier turns."""
        if not renderer.rewrites or self._parent is None or self._again is not None:
            return self
        messages = self._conversation.since(0)
        before = messages[: self._length - 1]
        reply = messages[self._length - 1]
        if renderer.keeps(before, reply, self._parent.sampled_ids, self.messages, self._conversation.tools):
            return self
        return replace(self, messages=messages, _length=0, _parent=None, _rewritten=True)

    def has_new_chars(self, number: int) -> bool:
        """Tells whether `render` has to encode at least about `number` characters. It stops counting there."""
        if self._again is not None:
            return False
        tools = self._conversation.tools if self._parent is None else ()
        left = number
        values = list[Any](self.messages) + list(tools)
        while values and left > 0:
            value = values.pop()
            left -= len(value) if isinstance(value, str) else _VALUE_CHARS
            if isinstance(value, Mapping):
                values += value.values()
            elif isinstance(value, list | tuple):
                values += value
        return left <= 0

    def render(self, renderer: Renderer, most_tokens: int | None = None) -> "array[int]":
        """Returns the ids that the prompt adds to those that it goes on from. Raises PromptTooLongError for more than
        `most_tokens`."""
        if self._again is not None:
            return self._again.delta_ids
        if self._parent is None:
            return array("i", renderer.start(self.messages, self._conversation.tools, most_tokens))
        return array("i", renderer.extend(self._parent.sampled_ids, self.messages, most_tokens))

    def count(self, renderer: Renderer) -> int:
        """Counts the tokens that `render` would return."""
        if self._again is not None:
            return len(self._again.delta_ids)
        if self._parent is None:
            return renderer.count_start(self.messages, self._conversation.tools)
        return renderer.count_extend(self._parent.sampled_ids, self.messages)


@dataclass(frozen=True, eq=False, slots=True)
class TurnPlan:
    """Describes a turn that may be sampled now. `break_kind` is what is known so far; `Session.record` decides.
    `number` is the smallest that no turn recorded or in flight has: seeds are derived from it. `first` is true if the
    session has no turn before it."""

    prompt_ids: TokenIds
    break_kind: Break | None
    number: int
    first: bool
    _parent: _Node | None = field(repr=False)
    # These ids are new in the prompt, after the turn `base_turn`.
    delta_ids: "array[int]" = field(repr=False)
    _conversation: RequestMessages | None = field(repr=False)
    _length: int = 0  # The parent's conversation has so many messages.
    # This reply was there when the request was sent anew.
    _retried: _Node | None = field(repr=False, default=None)
    # The chat template changed earlier turns.
    _rewritten: bool = False

    @property
    def base_turn(self) -> int | None:
        """Returns the turn of this session whose prompt and sampled ids this prompt begins with, or None."""
        return self._parent.turn if self._parent is not None else None

    @property
    def base_tokens(self) -> int:
        """Counts the prompt and sampled ids of the base turn if this plan extends its chain, as far as is known; else
        0."""
        extends = self.break_kind is None and self.base_turn is not None
        return len(self.prompt_ids) - len(self.delta_ids) if extends else 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Has the numbers of a recorded turn. `base_turn` is the turn that it extends within its chain: the first
    `base_tokens` ids of its prompt are that turn's prompt and sampled ids."""

    turn: int
    chain: int
    break_kind: Break | None
    base_turn: int | None = None
    base_tokens: int = 0


class Session:
    """Holds the turns of one session, each with the turn that it continues."""

    def __init__(self, renderer: Renderer, *, first_turn: int = 0, first_chain: int = 0) -> None:
        self._renderer = renderer
        self._turn = first_turn
        self._chain = first_chain
        self._next_number = first_turn
        self._freed_numbers = list[int]()
        # Has a reply by the hash of its request and itself.
        self._replies: dict[Fingerprint, _Node] = {}
        # Has a request's newest completion by the request's hash.
        self._requests: dict[Fingerprint, _Node] = {}
        self._tips: dict[int, _Node] = {}  # Has for each chain the only reply that extends it.
        self._newest: _Node | None = None
        # Has the prompt and sampled ids of tips. The one that was used least lately comes first.
        self._ids: OrderedDict[_Node, TokenIds] = OrderedDict()
        # Has the hash of every prefix of every recorded conversation.
        self._seen: set[Fingerprint] = set()
        # Counts by a request's hash the plans that did not end yet.
        self._flying: Counter[Fingerprint] = Counter()
        self._superseded: set[_Node] = set()

    @property
    def superseded(self) -> tuple[int, int]:
        """Returns how many replies are in no row so far because a retry took their place, and the number of their
        sampled tokens."""
        return len(self._superseded), sum(len(node.sampled_ids) for node in self._superseded)

    @property
    def _fresh(self) -> bool:
        return self._turn == 0

    def plan_apart(self, prompt_ids: tuple[int, ...]) -> TurnPlan:
        """Plans a turn from token ids that a client brings: nothing is rendered, and no turn of messages continues
        it."""
        return TurnPlan(TokenIds(prompt_ids), None, self._take_number(), self._fresh, None, array("i"), None)

    def record_apart(self) -> Recorded:
        """Records a turn of `plan_apart`, as a chain of its own."""
        recorded = Recorded(self._turn, self._chain, None)
        self._turn += 1
        self._chain += 1
        return recorded

    def plan_turn(self, messages: Sequence[Message], tools: Tools | None = None) -> TurnPlan:
        """Drafts, renders and plans a request in one call. Every plan must end in `record` or `release`."""
        draft = self.draft(RequestMessages.of(messages, tools)).settled(self._renderer)
        return self.plan(draft, draft.render(self._renderer))

    def draft(self, conversation: RequestMessages) -> Draft:
        again = self._requests.get(conversation.hashes[-1])
        if again is not None:
            return Draft((), len(conversation.hashes) - 1, again.parent, again, conversation)
        parent, length = self._deepest(conversation.hashes)
        return Draft(conversation.since(length), length, parent, None, conversation)

    def tokens_before(self, draft: Draft) -> int:
        """Counts the ids that a plan of this draft would go on from."""
        return len(self._ids_of(draft._parent))

    def plan(self, draft: Draft, delta_ids: "array[int]") -> TurnPlan:
        """Plans the turn of a draft from the ids that `draft.render` returned. Every plan must end in `record` or
        `release`."""
        number = self._take_number()
        first = self._fresh
        parent = draft._parent
        conversation = draft._conversation
        request = conversation.hashes[-1]
        prompt_ids = self._ids_of(parent).extended(delta_ids)
        retried = None if self._flying[request] else draft._again
        self._flying[request] += 1
        kind = self._break(parent, conversation, retried, draft._rewritten)
        return TurnPlan(
            prompt_ids=prompt_ids,
            break_kind=kind,
            number=number,
            first=first,
            _parent=parent,
            delta_ids=delta_ids,
            _conversation=conversation,
            _length=draft._length,
            _retried=retried,
            _rewritten=draft._rewritten,
        )

    def record(self, plan: TurnPlan, sampled_ids: Sequence[int], reply: Message) -> Recorded:
        """Records the turn with `reply`, the assistant message that the client gets. If it raises, the session is
        unchanged."""
        assert plan._conversation is not None, "a plan of messages"
        kind = self._break(plan._parent, plan._conversation, plan._retried, plan._rewritten)
        hashes = plan._conversation.hashes
        node = _Node(plan._parent, plan.delta_ids, array("i", sampled_ids), hashes[-1])
        head = extend_hash(hashes[-1], reply)
        base_turn = None
        base_tokens = 0
        if kind is None and plan._parent is not None:
            node.chain = plan._parent.chain
            base_turn = plan._parent.turn
            base_tokens = 0 if base_turn is None else len(plan.prompt_ids) - len(plan.delta_ids)
            self._superseded.discard(plan._parent)
        else:
            node.chain = self._chain
            self._chain += 1
        if kind is Break.duplicate and self._newest is not None:
            self._superseded.add(self._newest)
        self._landed(hashes[-1])
        self._replies[head] = self._requests[node.request] = self._tips[node.chain] = self._newest = node
        self._seen.update(hashes[max(1, plan._length) :], (head,))  # The parent's prefixes are in there.
        self._hold(node, plan)
        node.turn = self._turn
        self._turn += 1
        return Recorded(self._turn - 1, node.chain, kind, base_turn, base_tokens)

    def release(self, plan: TurnPlan) -> None:
        """Ends a plan that came to nothing, because it failed or its client went away. The next plan gets its number,
        and so its seed."""
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
        """Holds the node's ids in place of those that it goes on from."""
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
        """Returns the reply at the end of the request's longest known prefix, and that prefix's number of messages."""
        for length in range(len(hashes) - 1, 0, -1):
            node = self._replies.get(hashes[length])
            if node is not None:
                return node, length
        return None, 0

    def _break(
        self, parent: _Node | None, conversation: RequestMessages, retried: _Node | None, rewritten: bool
    ) -> Break | None:
        """Says why a turn does not extend its parent's chain, or None. It is asked when a turn is planned and again
        when it is recorded, as another call may have finished in between."""
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
        if rewritten:
            return Break.prefix_changed
        if hashes[-1] in self._seen:
            return Break.truncated
        kept = max((i for i, prefix in enumerate(hashes) if prefix in self._seen), default=0)
        other_reply = conversation.assistant[kept]
        answered = hashes[kept] in self._replies or hashes[kept] in self._requests
        return Break.branch if answered and not other_reply else Break.prefix_changed

    def _is_tip(self, node: _Node) -> bool:
        return self._tips.get(node.chain) is node
