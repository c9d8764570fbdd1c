"""How much may run at once and how often."""


class TokenBucket:
    """Tokens come back with time, up to `size`."""

    def __init__(self, size: int, per_second: int) -> None:
        self.size = size
        self.per_second = per_second
        self.tokens = size
        self.seen = 0

    def refill(self, now: int) -> int:
        """Adds what came back since the last look."""
        passed = now - self.seen
        if passed <= 0:
            return self.tokens
        self.seen = now
        grown = self.tokens + passed * self.per_second
        self.tokens = min(grown, self.size)
        return self.tokens

    def spend(self, count: int) -> bool:
        """Takes tokens if there are enough."""
        if count > self.tokens or count < 1:
            return False
        self.tokens = self.tokens - count
        return True

    def seconds_until(self, count: int) -> int:
        """Full seconds until so many tokens are there, -1 for never."""
        if count > self.size:
            return -1
        missing = max(count - self.tokens, 0)
        return (missing + self.per_second - 1) // self.per_second


def recent(times: list, now: int, window: int) -> list:
    """Times within the window before now; its far edge is outside."""
    return [time for time in times if time > now - window]


def rate_exceeded(times: list, now: int, window: int, limit: int) -> bool:
    """Whether more than `limit` calls fall into the window."""
    return len(recent(times, now, window)) > limit


def batches(count: int, size: int) -> int:
    """How many batches hold the items; zero for a wrong size."""
    if size < 1:
        return 0
    full = count // size
    if count % size == 0:
        return full
    return full + 1


def worker_for(number: int, workers: list) -> str:
    """Gives jobs to workers in turn; '' without workers."""
    if not workers:
        return ""
    return workers[number % len(workers)]


def least_loaded(loads: dict):
    """The worker with the fewest jobs, the first name of equals."""
    if not loads:
        return None
    ordered = sorted(loads, key=lambda name: (loads[name], name))
    return ordered[0]


def can_start(running: list, name: str, limit: int) -> bool:
    """Below the limit, and no job of this name runs already."""
    if name in running:
        return False
    return len(running) < limit


def over_quota(used: dict, quota: dict) -> list:
    """Names that use more than their quota; no quota means no limit."""
    found = []
    for name, amount in used.items():
        limit = quota.get(name)
        if limit is not None and amount > limit:
            found.append(name)
    return sorted(found)


def parse_rate(text: str) -> int:
    """Calls per minute of '5x/s' or '90/m', in any case."""
    number, _, unit = text.partition("/")
    calls = int(number.rstrip("x "))
    if unit.upper().startswith("S"):
        calls = calls * 60
    return calls


def topic_matches(topic: str, pattern: str) -> bool:
    """A pattern that ends with a star matches every beginning."""
    if pattern.endswith("*"):
        return topic.startswith(pattern.rstrip("*"))
    return topic == pattern
