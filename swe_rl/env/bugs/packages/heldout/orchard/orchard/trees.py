"""The trees: how they grow, where they stand, what they need."""

from dataclasses import dataclass

DWARF_STOCKS = ("m9", "m26", "m27")


@dataclass
class Tree:
    kind: str
    age: int
    sick: bool
    graft: object

    def is_bearing(self) -> bool:
        """Healthy trees bear fruit from their fourth year on."""
        return self.age >= 4 and not self.sick

    def needs_stake(self) -> bool:
        if self.age <= 2:
            return True
        return self.graft is not None and self.graft.lower() in DWARF_STOCKS

    def expected_kilos(self) -> int:
        """Six kilos a year after the third one, at most ninety."""
        if self.age < 4:
            return 0
        years = self.age - 3
        return min(years * 6, 90)


def growth_stage(age: int) -> str:
    if age < 1:
        return "seedling"
    if age > 25:
        return "veteran"
    return "grown"


def trees_in_row(length: int, gap: int) -> int:
    """Trees stand at both ends of a row, and a gap apart between."""
    if length < 0:
        return 0
    return length // gap + 1


def place_of(number: int, per_row: int) -> tuple:
    """The row and the place, from zero on, of a tree numbered from one on."""
    before = number - 1
    row = before // per_row
    place = before % per_row
    return (row, place)


def oldest_tree(trees: list):
    """The oldest tree, the first one of equals, None for none."""
    best = None
    for tree in trees:
        if best is None or tree.age > best.age:
            best = tree
    return best


def free_places(row: list) -> int:
    """Counts the None places in front of the 'fence'."""
    free = 0
    for place in row:
        if place == "fence":
            break
        if place is None:
            free = free + 1
    return free


def lacks_pollinator(kinds: list) -> bool:
    """Whether the two trees next to the first one are of its kind."""
    own = kinds[0].lower()
    return all(kind.lower() == own for kind in kinds[1:3])


def tag_text(kind: str, number: int) -> str:
    """The first word in capitals and the number, as in 'COX #7'."""
    words = kind.lstrip("* ").split(" ")
    name = words[0].upper()
    return name + " #" + str(number)
