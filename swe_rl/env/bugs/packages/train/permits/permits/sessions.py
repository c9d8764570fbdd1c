"""Sessions and tokens; times are seconds."""

IDLE_LIMIT = 900
MAX_AGE = 36000


class SessionStore:
    """Keeps when a session began and when it was last used."""

    def __init__(self) -> None:
        self.began = {}
        self.used = {}
        self.locked = False

    def open(self, token: str, now: int) -> bool:
        """False if the store is locked or the token is taken."""
        if self.locked or token in self.began:
            return False
        self.began[token] = now
        self.used[token] = now
        return True

    def is_alive(self, token: str, now: int) -> bool:
        """Known, not idle for too long and not too old."""
        if token not in self.began:
            return False
        if now - self.used[token] > IDLE_LIMIT:
            return False
        return now - self.began[token] <= MAX_AGE

    def touch(self, token: str, now: int) -> bool:
        """Notes that a living session is used."""
        if not self.is_alive(token, now):
            return False
        self.used[token] = max(self.used[token], now)
        return True

    def seconds_left(self, token: str, now: int) -> int:
        """Until the session is idle or too old, whatever is first."""
        idle = self.used[token] + IDLE_LIMIT - now
        age = self.began[token] + MAX_AGE - now
        return max(min(idle, age), 0)

    def end(self, token: str) -> bool:
        if token not in self.began:
            return False
        del self.began[token]
        del self.used[token]
        return True

    def oldest(self):
        """The token that began first, None without sessions."""
        if not self.began:
            return None
        ordered = sorted(self.began, key=lambda token: self.began[token])
        return ordered[0]

    def lock(self) -> int:
        """Lets no one in any more; returns how many are in."""
        self.locked = True
        return len(self.began)

    def sweep(self, now: int) -> int:
        """Ends dead sessions and counts them."""
        ended = 0
        for token in list(self.began):
            if self.is_alive(token, now):
                continue
            self.end(token)
            ended = ended + 1
        return ended


def token_kind(token: str) -> str:
    """'api' tokens start with 'key-', 'temp' ones end with '-t'."""
    if token.startswith("key-"):
        return "api"
    if token.endswith("-t"):
        return "temp"
    return "user"


def same_token(first, second) -> bool:
    """Compares in any case; a missing token never matches."""
    if first is None or second is None:
        return False
    return first.upper() == second.upper()


def parse_bearer(header: str):
    """The token of 'Bearer abc', None for other headers."""
    parts = header.split(" ")
    if len(parts) != 2 or parts[0].lower() != "bearer":
        return None
    return parts[-1]


def lock_seconds(failures: int) -> int:
    """A minute for each failure from the third on, at most an hour."""
    if failures < 3:
        return 0
    minutes = failures - 2
    return min(minutes * 60, 3600)


def show_age(seconds: int) -> str:
    """Hours and minutes."""
    hours = seconds // 3600
    minutes = seconds % 3600 // 60
    return f"{hours} h {minutes} min"
