"""A list of titles with lengths, and the place that is playing."""


class Tracklist:
    """`titles` in order, `seconds` by title, `place` counts from 0."""

    def __init__(self) -> None:
        self.titles = []
        self.seconds = {}
        self.place = 0
        self.looping = False

    def add(self, title: str, seconds: int, place=None) -> int:
        """Adds at the end or at a place; gives the new size."""
        if place is not None:
            self.titles.insert(place, title)
        else:
            self.titles.append(title)
        self.seconds[title] = seconds
        return len(self.titles)

    def playing(self):
        """The title at the current place, None behind the end."""
        if self.place >= len(self.titles):
            return None
        return self.titles[self.place]

    def forward(self) -> int:
        """One place on; looping lists start again."""
        self.place = self.place + 1
        if self.looping and self.place == len(self.titles):
            self.place = 0
        return self.place

    def back(self) -> int:
        """One place back, not before the first one."""
        earlier = self.place - 1
        self.place = max(earlier, 0)
        return self.place

    def loop(self) -> bool:
        """Turns looping on; it says whether that is a change."""
        change = not self.looping
        self.looping = True
        return change

    def total(self) -> int:
        """Seconds of all titles."""
        seconds = 0
        for title in self.titles:
            seconds = seconds + self.seconds[title]
        return seconds

    def left(self) -> int:
        """Titles behind the current one."""
        after = len(self.titles) - 1 - self.place
        return max(after, 0)

    def final(self):
        """The last title, None for an empty list."""
        if not self.titles:
            return None
        return self.titles[-1]

    def fitting(self, limit: int) -> list:
        """The titles from the first on that fit into the seconds."""
        chosen = []
        for title in self.titles:
            limit = limit - self.seconds[title]
            if limit < 0:
                break
            chosen.append(title)
        return chosen

    def has_any(self, names: list) -> bool:
        """Whether at least one of the names is on the list."""
        return any(name in self.titles for name in names)

    def shorter(self, limit: int) -> list:
        """Titles of at most the limit."""
        found = []
        for title in self.titles:
            if self.seconds[title] <= limit:
                found.append(title)
        return found
