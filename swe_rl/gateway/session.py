"""A session's state: the token ids that it holds, and how a new request relates to them.

Invariants:
- Nothing is ever encoded again: a request that goes on from a recorded reply gets that reply's prompt and sampled ids
  as they are, and only its new messages are rendered.
- Within a chain, `prompt[n + 1]` starts with `prompt[n] + sampled[n]`. Only the newest reply of a chain can be extended
  within it. Anything else starts a new chain, and `Break` names the reason.
- Where the chat template would write earlier turns otherwise, the prompt is rendered whole (`Draft.settled`).
- Several conversations of one session (a sub-agent) may take turns; each stays in its own chain. Sub-agents of ours say
  their numbers, and nothing that one of them asked is taken for another one's, whatever the words.
- A request can go on from every reply. A request that is sent again once it was answered, while no other call with it
  is under way, is a retry: the reply before is superseded until something goes on from it. If calls ask the same at
  once, or a turn apart stands between, none supersedes another.
- Chain and turn numbers are given when a completion is recorded, not when it is planned: of two calls in flight from
  the same reply, the first to finish extends the chain.
- A session does no I/O and reads no clock. What it holds grows with the new tokens, not with the prompts.
- Requests are compared by the hashes of their conversations (`gateway/conversation.py`).
- A turn costs what is new: ids are appended where the chain's ids stand. For chains that were not used lately only the
  parts are held, and they are put together when one of the chains goes on.
"""

import heapq
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.chains.draft import Draft, Node, Renderer
from swe_rl.gateway.chains.segment import ACTS, Lineage, Purpose, role_of_chain
from swe_rl.gateway.conversation import Fingerprint, Message, RequestMessages, Tools
from swe_rl.gateway.trace import MEANT_BREAKS, Break, Recorded, SegmentRole

K = TypeVar("K")
# The ids of so many chains are held in one piece. One is enough for one conversation, but sub-agents take turns.
_KEPT = 4


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
    max_total_tokens: int = 0  # All its segments together have at most so many tokens; 0 is no limit.
    # Its agent is ours and says which calls are summaries, compactions and those of sub-agents.
    has_segments: bool = False
    # Sessions of one group begin with the same prompt, so a router may put them on the engine that has it cached.
    group_id: str | None = None


@dataclass(frozen=True, eq=False, slots=True)
class TurnPlan:
    """Describes a turn that may be sampled now. `break_kind` is what is known so far; `Session.record` decides.
    `number` is the smallest that no turn recorded or in flight has: seeds are derived from it. `first` is true if the
    session has no turn before it."""

    prompt_ids: TokenIds
    break_kind: Break | None
    number: int
    first: bool
    # The prompt adds so many tokens to those of the session's segments, as far as is known. If it takes the place of a
    # reply, the number is that reply's, below 0.
    added_tokens: int
    # These ids are new in the prompt, after the turn `base_turn`.
    delta_ids: "array[int]" = field(repr=False)
    draft: Draft | None = field(repr=False)  # The client brought token ids if it is None.
    # This reply was there when the request was sent anew.
    retried: Node | None = field(repr=False, default=None)
    purpose: Purpose = ACTS

    @property
    def parent(self) -> Node | None:
        """Returns the reply whose prompt and sampled ids this prompt begins with, or None."""
        return None if self.draft is None else self.draft.parent

    @property
    def base_turn(self) -> int | None:
        return None if self.parent is None else self.parent.turn

    @property
    def base_tokens(self) -> int:
        """Counts the prompt and sampled ids of the base turn if this plan extends its chain, as far as is known; else
        0."""
        extends = self.break_kind is None and self.parent is not None
        return len(self.prompt_ids) - len(self.delta_ids) if extends else 0


class Session:
    """Holds the turns of one session, each with the turn that it continues."""

    def __init__(self, renderer: Renderer, *, first_turn: int = 0, first_chain: int = 0) -> None:
        self._renderer = renderer
        self._turn = first_turn
        self._chain = first_chain
        self._next_number = first_turn
        self._freed_numbers = list[int]()
        # Maps the hash of a whole conversation to the reply at its end.
        self._replies: dict[Fingerprint, Node] = {}
        # Maps the hash of a request's conversation to the newest reply to it.
        self._requests: dict[Fingerprint, Node] = {}
        self._tips: dict[int, Node] = {}  # Maps a chain to its newest reply: only this one can be extended within it.
        self._newest: Node | None = None
        # The prompt and sampled ids of a few tips are held in one piece. The one used least lately comes first.
        self._ids: OrderedDict[Node, TokenIds] = OrderedDict()
        # These are the hashes of all prefixes of all recorded conversations.
        self._seen: set[Fingerprint] = set()
        # Counts by a request's hash the plans that did not end yet.
        self._flying: Counter[Fingerprint] = Counter()
        # Counts by a reply the plans in flight that may extend its chain.
        self._extending: Counter[Node] = Counter()
        self._superseded: set[Node] = set()
        self._lineage = Lineage()

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
        number = self._take_number()
        return TurnPlan(TokenIds(prompt_ids), None, number, self._fresh, len(prompt_ids), array("i"), None)

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

    def draft(self, conversation: RequestMessages, agent: int = 0) -> Draft:
        """Looks a request up that this agent sends: finds the reply that it goes on from, and which of its messages are
        new. 0 is the session's own agent, others are sub-agents."""
        conversation = conversation.of_agent(agent)
        again = self._requests.get(conversation.hashes[-1])
        parent, length = self._deepest(conversation.hashes)
        if again is not None and not self._goes_on_elsewhere(again, parent):
            whole = len(conversation.hashes) - 1
            return Draft(conversation, (), whole, parent=again.parent, again=again, source=again.source)
        new = conversation.since(length)
        return Draft(conversation, new, length, parent=parent, again=None, source=parent)

    def tokens_before(self, draft: Draft) -> int:
        """Counts the ids that a plan of this draft would go on from."""
        return len(self._ids_of(draft.parent))

    def plan(self, draft: Draft, delta_ids: "array[int]", purpose: Purpose = ACTS) -> TurnPlan:
        """Plans the turn of a draft from the ids that `draft.render` returned. Every plan must end in `record` or
        `release`."""
        parent = draft.parent
        prompt_ids = self._ids_of(parent).extended(delta_ids)
        request = draft.conversation.hashes[-1]
        # While another call asks the same, this one is no retry of it.
        retried = None if self._flying[request] else draft.again
        self._flying[request] += 1
        kind = self._break(draft, retried, purpose)
        added_tokens = self._added_tokens(kind, parent, len(prompt_ids), len(delta_ids))
        if kind is None and parent is not None:
            if self._extending[parent]:
                # The other call extends the chain, so this one will begin its own.
                added_tokens = len(prompt_ids)
            self._extending[parent] += 1
        return TurnPlan(
            prompt_ids=prompt_ids,
            break_kind=kind,
            number=self._take_number(),
            first=self._fresh,
            added_tokens=added_tokens,
            delta_ids=delta_ids,
            draft=draft,
            retried=retried,
            purpose=purpose,
        )

    def record(self, plan: TurnPlan, sampled_ids: Sequence[int], reply: Message) -> Recorded:
        """Records the turn with `reply`, the assistant message that the client gets. If it raises, the session is
        unchanged."""
        draft = plan.draft
        assert draft is not None, "a plan of messages"
        hashes = draft.conversation.hashes
        parent = draft.parent
        kind = self._break(draft, plan.retried, plan.purpose)
        node = Node(parent, plan.delta_ids, array("i", sampled_ids), hashes[-1], draft.source, self._turn)
        head = draft.conversation.answered(reply)
        # From here on nothing can fail.
        added_tokens = self._added_tokens(kind, parent, len(plan.prompt_ids), len(plan.delta_ids))
        base_turn = None
        base_tokens = 0
        if kind is None and parent is not None:
            base_turn = parent.turn
            base_tokens = len(plan.prompt_ids) - len(plan.delta_ids)
            self._extend_chain(node, parent, plan.purpose)
        else:
            self._begin_chain(node, kind, plan)
        if kind is Break.duplicate and self._newest is not None:
            self._superseded.add(self._newest)
        self._land(plan)
        self._replies[head] = self._requests[node.request] = self._tips[node.chain] = self._newest = node
        # The prefixes of the parent's conversation are in there already.
        self._seen.update(hashes[max(1, draft.length) :], (head,))
        self._hold(node, plan)
        self._lineage.note(node.turn, node.role, plan.purpose.agent)
        self._turn += 1
        return Recorded(
            turn=node.turn,
            chain=node.chain,
            break_kind=kind,
            base_turn=base_turn,
            base_tokens=base_tokens,
            added_tokens=added_tokens,
            role=node.role,
            parent_turn=node.parent_turn,
            sub_agent=plan.purpose.agent,
        )

    def _extend_chain(self, node: Node, parent: Node, purpose: Purpose) -> None:
        """Puts a reply at the end of its parent's chain. The parent is in a row now, so nothing supersedes it."""
        node.chain = parent.chain
        node.role = SegmentRole.summary if purpose.summarizes else parent.role
        self._superseded.discard(parent)

    def _begin_chain(self, node: Node, kind: Break | None, plan: TurnPlan) -> None:
        """Makes a reply the first one of a chain, with a role and the turn that the chain comes from."""
        node.chain = self._chain
        self._chain += 1
        if node.source is not None:
            node.parent_turn = node.source.turn
        if kind is Break.duplicate and plan.retried is not None:
            node.role = plan.retried.role
            node.beginning = plan.retried.beginning
            if plan.retried.parent_turn is not None:
                node.parent_turn = plan.retried.parent_turn
            return
        node.role = role_of_chain(kind, plan.purpose)
        if kind in MEANT_BREAKS:
            node.beginning = plan.purpose.beginning
            node.parent_turn = self._lineage.parent_of(plan.purpose)

    def _added_tokens(self, kind: Break | None, parent: Node | None, prompt_tokens: int, delta_tokens: int) -> int:
        """Counts what a prompt adds to the tokens of the session's segments. That of a retry was counted with the reply
        that it supersedes, which counts no more, unless something goes on from it."""
        if kind is Break.duplicate and self._newest is not None:
            return -len(self._newest.sampled_ids)
        if kind is not None or parent is None:
            return prompt_tokens
        if parent in self._superseded:
            return delta_tokens + len(parent.sampled_ids)
        return delta_tokens

    def release(self, plan: TurnPlan) -> None:
        """Ends a plan that came to nothing, because it failed or its client went away. The next plan gets its number,
        and so its seed."""
        heapq.heappush(self._freed_numbers, plan.number)
        self._land(plan)

    def _land(self, plan: TurnPlan) -> None:
        """Counts the plan no more as in flight."""
        if plan.break_kind is None and plan.parent is not None:
            _count_down(self._extending, plan.parent)
        if plan.draft is not None:
            _count_down(self._flying, plan.draft.conversation.hashes[-1])

    def _ids_of(self, node: Node | None) -> TokenIds:
        if node is None:
            return TokenIds()
        ids = self._ids.get(node)
        return node.ids() if ids is None else ids

    def _hold(self, node: Node, plan: TurnPlan) -> None:
        """Holds the node's ids in place of those that it goes on from."""
        if plan.parent is not None:
            self._ids.pop(plan.parent, None)
        self._ids[node] = plan.prompt_ids.extended(node.sampled_ids)
        if len(self._ids) > _KEPT:
            self._ids.popitem(last=False)

    def _take_number(self) -> int:
        if self._freed_numbers:
            return heapq.heappop(self._freed_numbers)
        self._next_number += 1
        return self._next_number - 1

    def _deepest(self, hashes: Sequence[Fingerprint]) -> tuple[Node | None, int]:
        """Returns the reply at the end of the request's longest known prefix, and that prefix's number of messages."""
        for length in range(len(hashes) - 1, 0, -1):
            node = self._replies.get(hashes[length])
            if node is not None:
                return node, length
        return None, 0

    def _break(self, draft: Draft, retried: Node | None, purpose: Purpose) -> Break | None:
        """Says why a turn does not extend its parent's chain, or None. It is asked when a turn is planned and again
        when it is recorded, as another call may have finished in between."""
        conversation = draft.conversation
        parent = draft.parent
        hashes = conversation.hashes
        if purpose.begins and self._newest is not None:
            return self._break_of_beginning(retried, purpose)
        if self._newest is None or (parent is not None and self._is_tip(parent)):
            return None
        if draft.rewritten:
            return Break.prefix_changed
        known = self._requests.get(hashes[-1])
        if known is not None:
            # Only the newest reply is superseded: whoever makes rows finds it right before this one, at the end of its
            # chain. That need not be the newest chain: an agent goes on after its sub-agent.
            if retried is known and self._stands_last(known):
                return Break.duplicate
            if retried is not None and not self._is_tip(known):
                return Break.truncated
            return Break.branch
        if hashes[-1] in self._seen:
            return Break.truncated
        # So many messages are as recorded. After a whole request or reply a client may go on in another way, which is a
        # branch. With a reply that nobody sampled here, or after half of a request, it changed what was there.
        kept = max((i for i, prefix in enumerate(hashes) if prefix in self._seen), default=0)
        brings_reply = conversation.assistant[kept]
        answered = hashes[kept] in self._replies or hashes[kept] in self._requests
        return Break.branch if answered and not brings_reply else Break.prefix_changed

    def _break_of_beginning(self, retried: Node | None, purpose: Purpose) -> Break:
        """Says how a segment begins that was meant: anew, or by a retry of its first call. An agent that repeats itself
        may be left by its next compaction with the very messages of the one before. Only the number tells the two
        apart."""
        if retried is not None and self._stands_last(retried) and retried.beginning == purpose.beginning:
            return Break.duplicate
        return Break.sub_agent if purpose.delegates else Break.compacted

    def _stands_last(self, node: Node) -> bool:
        """Tells whether no turn was recorded after this reply, not even one apart."""
        return node is self._newest and node.turn == self._turn - 1

    def _goes_on_elsewhere(self, again: Node, parent: Node | None) -> bool:
        """Tells whether a request that was sent before now goes on from a newer reply of the same words. That happens
        to an agent that repeats itself, after a compaction."""
        return parent is not None and parent is not again.source and self._is_tip(parent) and self._lineage.compacted

    def _is_tip(self, node: Node) -> bool:
        return self._tips.get(node.chain) is node


def _count_down(counts: Counter[K], key: K) -> None:
    """Takes one off a count. The key goes with the last one: what a session holds must not grow with its calls."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
