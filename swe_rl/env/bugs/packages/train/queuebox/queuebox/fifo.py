"""A queue with a limit: first in, first out."""


class BoundedQueue:
    """Holds at most `limit` items."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.items = []
        self.dropped = 0
        self.closed = False

    def put(self, item) -> bool:
        """Refuses items when closed; counts those that do not fit."""
        if self.closed:
            return False
        if len(self.items) >= self.limit:
            self.dropped = self.dropped + 1
            return False
        self.items.append(item)
        return True

    def get(self):
        """Takes the oldest item out, None if there is none."""
        if not self.items:
            return None
        return self.items.pop(0)

    def peek(self, newest: bool = False):
        """Looks at the oldest or the newest item."""
        if not self.items:
            return None
        if newest:
            return self.items[-1]
        return self.items[0]

    def room(self) -> int:
        """How many items still fit."""
        if self.closed:
            return 0
        return self.limit - len(self.items)

    def take(self, count: int) -> list:
        """Takes up to `count` of the oldest items out."""
        size = min(count, len(self.items))
        taken = self.items[:size]
        self.items = self.items[size:]
        return taken

    def position(self, item) -> int:
        """The place in the queue counted from one, zero if absent."""
        if item not in self.items:
            return 0
        return self.items.index(item) + 1

    def close(self) -> bool:
        """Closes the queue; False if it was closed before."""
        if self.closed:
            return False
        self.closed = True
        return True

    def is_done(self) -> bool:
        """Closed and empty."""
        return self.closed and not self.items

    def fill_percent(self) -> int:
        used = len(self.items) * 100
        return used // self.limit
