"""When to try again."""

PERMANENT = ("denied", "missing", "invalid")


def backoff(attempt: int, base: int = 2, cap: int = 60) -> int:
    """Seconds before a retry: doubled each time, up to the cap."""
    wait = base * 2 ** (attempt - 1)
    return min(wait, cap)


def is_permanent(error: str) -> bool:
    """Whether the kind in front of the colon cannot be cured."""
    parts = error.split(":")
    kind = parts[0].lower()
    return kind in PERMANENT


def should_retry(attempt: int, limit: int, error: str) -> bool:
    """Retries curable errors below the limit of attempts."""
    if attempt >= limit:
        return False
    if is_permanent(error):
        return False
    return True


def attempts_left(used: int, limit: int) -> int:
    left = limit - used
    return max(left, 0)


def total_wait(attempts: int) -> int:
    """Seconds spent waiting before this many retries."""
    total = 0
    for attempt in range(attempts):
        total = total + backoff(attempt + 1)
    return total


def run_attempts(results: list, limit: int) -> int:
    """How many attempts are made until one succeeds or the limit."""
    made = 0
    for success in results[:limit]:
        made = made + 1
        if success:
            break
    return made


def first_success(results: list):
    """The number, from one, of the first success, or None."""
    number = 0
    for result in results:
        number = number + 1
        if result != "ok":
            continue
        return number
    return None


def spread(slot: int, slots: int, period: int) -> int:
    """An even delay within the period for one of several workers."""
    place = slot % slots
    return place * period // slots


def deadline_passed(start: int, limit, now: int) -> bool:
    """Whether the time is over; without a limit it never is."""
    if limit is None:
        return False
    return now - start > limit


def last_error(log: list) -> str:
    """The text of the last line that starts with ERROR, or ''."""
    lines = [line for line in log if line.startswith("ERROR")]
    if not lines:
        return ""
    return lines[-1].lstrip("ERROR: ")


def clean_error(text: str) -> str:
    """One line without dots at its end; '?' for an empty one."""
    plain = text.strip().rstrip(".")
    if plain == "":
        return "?"
    return plain
