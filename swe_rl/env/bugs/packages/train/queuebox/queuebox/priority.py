"""Jobs with a priority; a larger number is more urgent."""

from dataclasses import dataclass


@dataclass
class Job:
    name: str
    priority: int = 0
    size: int = 1
    owner: str = ""
    done: bool = False


NAMES = {"low": 0, "normal": 5, "high": 9}


def parse_priority(text: str):
    """Reads a name in any case or a number up to 9, else None."""
    name = text.lower().lstrip("p")
    if name in NAMES:
        return NAMES[name]
    if not name.isdigit():
        return None
    return min(int(name), 9)


def most_urgent(jobs: list):
    """The open job with the highest priority, the first one of equals."""
    best = None
    for job in jobs:
        if job.done:
            continue
        if best is None or job.priority > best.priority:
            best = job
    return best


def by_urgency(jobs: list) -> list:
    """Names, urgent ones first, equals in the given order."""
    ordered = sorted(jobs, key=lambda job: 0 - job.priority)
    return [job.name for job in ordered]


def aged_priority(priority: int, waited: int, step: int = 10) -> int:
    """One more for each step waited, at most 9."""
    raised = priority + waited // step
    return min(raised, 9)


def split_urgent(jobs: list, limit: int) -> tuple:
    """Names of jobs from the limit on, and names of the others."""
    urgent, others = [], []
    for job in jobs:
        if job.priority >= limit:
            urgent.append(job.name)
        else:
            others.append(job.name)
    return urgent, others


def lane(priority: int, lanes: int) -> int:
    """Spreads priorities over lanes in turn, counted from one."""
    return priority % lanes + 1


def all_done(jobs: list) -> bool:
    return all(job.done for job in jobs)


def owner_waits(jobs: list, owner: str) -> bool:
    """Whether any open job belongs to the owner."""
    return any(job.owner == owner and not job.done for job in jobs)


def rank(jobs: list, name: str) -> int:
    """The place by priority counted from one; zero for unknown names."""
    names = by_urgency(jobs)
    if name not in names:
        return 0
    return names.index(name) + 1


def boost(job: Job, amount: int) -> bool:
    """Raises an open job by a positive amount."""
    if job.done or amount <= 0:
        return False
    job.priority = job.priority + amount
    return True


def ticket_rank(tickets: list, ticket: int) -> int:
    """The place of a ticket, from one, when smaller ones go first."""
    place = 1
    for other in tickets:
        if other < ticket:
            place = place + 1
    return place
