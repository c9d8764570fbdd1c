"""What is at home: grams per name, with a day until which it keeps."""


class Pantry:
    """`stock` maps names to grams, `keeps` maps names to a day."""

    def __init__(self) -> None:
        self.stock = {}
        self.keeps = {}

    def store(self, name: str, grams: int, day=None) -> None:
        """Puts something on the shelf; the day may be unknown."""
        key = name.lower()
        self.stock[key] = self.stock.get(key, 0) + grams
        if day is not None:
            self.keeps[key] = day

    def take(self, name: str, grams: int) -> int:
        """Takes what there is, at most `grams`; gives the taken grams."""
        there = self.stock.get(name, 0)
        taken = min(there, grams)
        self.stock[name] = there - taken
        return taken

    def missing(self, name: str, grams: int) -> int:
        there = self.stock.get(name, 0)
        return max(grams - there, 0)

    def has(self, name: str, grams: int) -> bool:
        """Whether there is enough of it."""
        return name in self.stock and self.stock[name] >= grams

    def spoiled(self, name: str, today: int) -> bool:
        """On its last day it is still good; without a day it keeps."""
        day = self.keeps.get(name)
        if day is None:
            return False
        return day < today

    def next_to_spoil(self):
        """The name with the earliest day, None if nothing spoils."""
        names = sorted(self.keeps, key=self.keeps.get)
        if len(names) == 0:
            return None
        return names[0]

    def find(self, prefix: str) -> list:
        found = []
        for name in sorted(self.stock):
            if name.startswith(prefix):
                found.append(name)
        return found

    def is_bare(self) -> bool:
        """True if no gram of anything is left."""
        bare = True
        for grams in self.stock.values():
            bare = bare and grams == 0
        return bare

    def count_low(self, limit: int) -> int:
        """How many names are at the limit or below."""
        count = 0
        for grams in self.stock.values():
            if grams <= limit:
                count = count + 1
        return count
