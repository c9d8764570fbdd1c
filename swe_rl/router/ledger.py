"""The ledger counts exactly what each engine is charged for, request by request and program by program.

Invariants:
- Tokens are integers and a charge is taken back as it was made, so an account whose charges are all gone is exactly
  zero, whatever came in between.
- A group's shared prefix is charged once an engine, as long as one of its charges is there.
- A charge is taken back once; its engine's loss takes back all of them.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Charge:
    """Holds what a request or an acting program costs an engine. `own_tokens` leaves out the group's prefix. An acting
    charge decays from `since_s` on."""

    own_tokens: int
    group_id: str | None
    acting: bool
    since_s: float


class Fading:
    """Sums parts of which each halves every `half_life_s`; with 0 no part does. Each operation takes constant time."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._sum = 0.0
        self._at_s = 0.0
        self._parts = 0

    def add(self, tokens: int, now_s: float) -> None:
        self._sum = self.value(now_s) + tokens
        self._at_s = now_s
        self._parts += 1

    def remove(self, tokens: int, since_s: float, now_s: float) -> None:
        """Takes away what an `add` at `since_s` is worth now."""
        self._parts -= 1
        left = self.value(now_s) - tokens * self.share(now_s - since_s)
        self._sum = max(0.0, left) if self._parts else 0.0
        self._at_s = now_s

    def value(self, now_s: float) -> float:
        if self._parts:
            return self._sum * self.share(now_s - self._at_s)
        return 0.0

    def share(self, age_s: float) -> float:
        """Returns what is left of a part of that age."""
        if self._half_life_s > 0:
            return float(0.5 ** (age_s / self._half_life_s))
        return 1.0


@dataclass(slots=True)
class _Prefix:
    """Counts the shared prefix of a group. `own_tokens` is its charge, without what all programs share."""

    tokens: int
    own_tokens: int
    running: int = 0
    acting: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """Sums the charges of one engine. Its load is running tokens + `acting_token_weight` * what is left of the acting
    ones. A group's prefix runs while one of its programs does. All programs begin with `common_tokens`, which are there
    as long as something runs."""

    acting_token_weight: float
    fading: Fading
    common_tokens: int = 0
    running: int = 0
    acting: int = 0
    running_tokens: int = 0
    acting_tokens: int = 0
    # Counts the prefixes of groups of which something runs.
    prefix_tokens: int = 0
    # Counts the prefixes of groups that only act.
    idle_prefix_tokens: int = 0
    _prefixes: dict[str, _Prefix] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.running or self.acting)

    @property
    def pinned_tokens(self) -> int:
        """Counts the tokens of running requests, which an engine reports as used."""
        return self.running_tokens + self.prefix_tokens + (self.common_tokens if self.running else 0)

    def load_tokens(self, now_s: float) -> float:
        return self.pinned_tokens + self.acting_token_weight * (self.fading.value(now_s) + self.idle_prefix_tokens)

    def own_tokens(self, tokens: int, group_id: str | None, prefix_tokens: int) -> int:
        """Returns how many of `tokens` belong to the program alone."""
        prefix = self._prefixes.get(group_id or "")
        shared = prefix_tokens if prefix is None else prefix.tokens
        return max(0, tokens - max(self.common_tokens, shared if group_id is not None else 0))

    def idle_tokens(self, tokens: int, group_id: str | None, prefix_tokens: int) -> int:
        """Returns how many tokens leave the cache with a program that stopped running. Its group's prefix is among them
        if the program is alone."""
        if group_id in self._prefixes:
            return self.own_tokens(tokens, group_id, prefix_tokens)
        return max(0, tokens - self.common_tokens)

    def need_tokens(self, tokens: int, group_id: str | None, prefix_tokens: int) -> int:
        """Returns by how much a running charge of `tokens` would raise the load."""
        own_share = self.own_tokens(tokens, group_id, prefix_tokens) + (0 if self.running else self.common_tokens)
        if group_id is None:
            return own_share
        prefix = self._prefixes.get(group_id)
        if prefix is None:
            return own_share + max(0, prefix_tokens - self.common_tokens)
        if prefix.running:
            return own_share
        return own_share + round((1.0 - self.acting_token_weight) * prefix.own_tokens)

    def hosts(self, group_id: str | None) -> bool:
        return group_id in self._prefixes

    def charge(self, tokens: int, group_id: str | None, prefix_tokens: int, acting: bool, now_s: float) -> Charge:
        own_tokens = self.own_tokens(tokens, group_id, prefix_tokens)
        if group_id is not None:
            prefix = self._prefixes.get(group_id)
            if prefix is None:
                prefix = _Prefix(prefix_tokens, max(0, prefix_tokens - self.common_tokens))
                self._prefixes[group_id] = prefix
            self._move(prefix, running=int(not acting), acting=int(acting))
        if acting:
            self.acting += 1
            self.acting_tokens += own_tokens
            self.fading.add(own_tokens, now_s)
        else:
            self.running += 1
            self.running_tokens += own_tokens
        return Charge(own_tokens, group_id, acting, now_s)

    def take_back(self, charge: Charge, now_s: float) -> None:
        if charge.acting:
            self.acting -= 1
            self.acting_tokens -= charge.own_tokens
            self.fading.remove(charge.own_tokens, charge.since_s, now_s)
        else:
            self.running -= 1
            self.running_tokens -= charge.own_tokens
        if charge.group_id is not None:
            prefix = self._prefixes[charge.group_id]
            self._move(prefix, running=-int(not charge.acting), acting=-int(charge.acting))
            if not prefix.running and not prefix.acting:
                del self._prefixes[charge.group_id]

    def alone_tokens(self, charge: Charge) -> int:
        """Returns how many tokens of the group's prefix leave with the charge."""
        prefix = self._prefixes.get(charge.group_id or "")
        if prefix is not None and prefix.running + prefix.acting == 1:
            return prefix.own_tokens
        return 0

    def worth_tokens(self, charge: Charge, now_s: float) -> float:
        """Returns by how much the load falls when an acting charge is taken back."""
        left_tokens = charge.own_tokens * self.fading.share(now_s - charge.since_s)
        return self.acting_token_weight * (left_tokens + self.alone_tokens(charge))

    def _move(self, prefix: _Prefix, running: int, acting: int) -> None:
        """Changes the number of a prefix's charges, and counts its tokens where they belong then."""
        for sign in (-1, 1):
            if prefix.running:
                self.prefix_tokens += sign * prefix.own_tokens
            elif prefix.acting:
                self.idle_prefix_tokens += sign * prefix.own_tokens
            if sign < 0:
                prefix.running += running
                prefix.acting += acting
