"""A graph of places; roads have a length and lead both ways or one way."""


class Graph:
    """Maps each place to its neighbours and their distance."""

    def __init__(self) -> None:
        self.roads = {}

    def add_place(self, name: str) -> bool:
        """False if the place is known already."""
        if name in self.roads:
            return False
        self.roads[name] = {}
        return True

    def add_road(self, start: str, end: str, km: int, one_way=False) -> bool:
        """Roads need a length and two different ends."""
        if km <= 0 or start == end:
            return False
        self.add_place(start)
        self.add_place(end)
        self.roads[start][end] = km
        if not one_way:
            self.roads[end][start] = km
        return True

    def neighbours(self, name: str) -> list:
        return sorted(self.roads.get(name, {}))

    def distance(self, start: str, end: str):
        """The length of the direct road, None without one."""
        if start == end:
            return 0
        return self.roads.get(start, {}).get(end)

    def has_road(self, start: str, end: str) -> bool:
        """Whether a direct road leads there."""
        return start in self.roads and end in self.roads[start]

    def is_one_way(self, start: str, end: str) -> bool:
        back = self.distance(end, start)
        return self.distance(start, end) is not None and back is None

    def dead_ends(self) -> list:
        """Places with no more than one neighbour."""
        names = sorted(self.roads)
        return [name for name in names if len(self.roads[name]) <= 1]

    def nearest(self, name: str):
        """The closest neighbour, the first of the alphabet of equals."""
        best = None
        for other in self.neighbours(name):
            km = self.roads[name][other]
            if best is None or km < self.roads[name][best]:
                best = other
        return best

    def longest_road(self) -> int:
        longest = 0
        for ends in self.roads.values():
            for km in ends.values():
                longest = max(longest, km)
        return longest

    def remove_road(self, start: str, end: str) -> bool:
        """Closes one direction of a road."""
        if not self.has_road(start, end):
            return False
        del self.roads[start][end]
        return True
