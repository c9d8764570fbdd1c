"""Ships and the berths they lie at."""

from dataclasses import dataclass

OWN_FLAGS = ("de", "dk", "se")
CLOSED = (3, 4)


@dataclass
class Ship:
    name: str
    flag: str
    length: int
    draft: int
    pilot: object

    def is_guest(self) -> bool:
        """Guests sail under a foreign flag; navy ships are never guests."""
        if self.name.endswith("(navy)"):
            return False
        return self.flag.lower() not in OWN_FLAGS

    def needs_tug(self) -> bool:
        if self.length > 180:
            return True
        return self.pilot is None and self.length >= 90

    def mooring_lines(self) -> int:
        """Four lines, and two more for each full fifty metres."""
        extra = self.length // 50
        return 4 + extra * 2

    def spare_depth(self, depth: int, tide: int) -> int:
        """The water below the keel, never less than zero."""
        water = depth + tide
        return max(water - self.draft, 0)


def can_moor(ship: Ship, length: int, depth: int) -> bool:
    """A berth is at least as long, and deeper than the draft."""
    return ship.length <= length and ship.draft < depth


def first_free(berths: list) -> int:
    """The number, from one on, of the first free berth; zero for none."""
    number = 1
    for ship in berths:
        if ship is None:
            return number
        number = number + 1
    return 0


def longest_ship(ships: list):
    """The longest ship, the first one of equals, None for none."""
    best = None
    for ship in ships:
        if best is not None and ship.length <= best.length:
            continue
        best = ship
    return best


def quay_side(berth: int) -> str:
    """Odd berths are on the north side; some are closed."""
    if berth in CLOSED:
        return "closed"
    if berth % 2 != 0:
        return "north"
    return "south"


def berth_fee(length: int, days: int) -> int:
    """20 for one day, else 3 for a metre and each day after the first."""
    if days <= 1:
        return 20
    paid = days - 1
    return length * 3 * paid


def queue_head(names: list) -> str:
    if not names:
        return "nobody"
    return names[0].upper()
