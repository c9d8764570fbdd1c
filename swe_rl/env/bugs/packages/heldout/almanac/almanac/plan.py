"""A plan of entries: each has a day, a title and perhaps a length."""


class Plan:
    """`entries` maps a day to its titles, `done` holds titles."""

    def __init__(self) -> None:
        self.entries = {}
        self.done = set()
        self.closed = False

    def add(self, day: int, title: str) -> bool:
        """A title stands only once on a day."""
        titles = self.entries.setdefault(day, [])
        fresh = title not in titles
        if fresh:
            titles.append(title)
        return fresh

    def first_day(self):
        """The earliest day with an entry."""
        days = sorted(self.entries)
        if not days:
            return None
        return days[0]

    def final_title(self, day: int):
        """What was added last to a day."""
        titles = self.entries.get(day)
        if titles is None:
            return None
        return titles[-1]

    def between(self, start: int, end: int) -> list:
        """Days with entries from start to end, both included."""
        days = sorted(self.entries)
        return [day for day in days if start <= day and day <= end]

    def finish(self, title: str) -> bool:
        """Marks a title; it says whether it was marked before."""
        known = title in self.done
        self.done.add(title)
        return known

    def open_titles(self, day: int) -> list:
        """Titles of a day that are not done."""
        titles = []
        for title in self.entries.get(day, []):
            if title in self.done:
                continue
            titles.append(title)
        return titles

    def is_free(self, day: int) -> bool:
        """No entry on this day, and the plan is not closed."""
        return day not in self.entries and not self.closed

    def all_done(self, day: int) -> bool:
        titles = self.entries.get(day, [])
        return all(title in self.done for title in titles)

    def busiest(self):
        """The day with most titles, the earlier one of equals."""
        best = None
        for day in sorted(self.entries):
            size = len(self.entries[day])
            if best is None or size > len(self.entries[best]):
                best = day
        return best

    def close(self, reason=None) -> str:
        """No more changes; a reason is given in capitals."""
        self.closed = True
        if reason is not None:
            return reason.upper()
        return "CLOSED"

    def find(self, word: str) -> list:
        """Days with a title that begins with the word."""
        days = []
        for day, titles in sorted(self.entries.items()):
            if any(title.lower().startswith(word) for title in titles):
                days.append(day)
        return days
