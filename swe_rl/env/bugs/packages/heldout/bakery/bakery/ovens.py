"""Ovens, what is in them, and how long it stays there."""

from dataclasses import dataclass, field


@dataclass
class Oven:
    trays: int
    degrees: int = 20
    broken: bool = False
    loaded: list = field(default_factory=list)

    def is_hot(self, wanted: int) -> bool:
        """A hot oven may be ten degrees short."""
        return self.degrees >= wanted - 10

    def room(self) -> int:
        if self.broken:
            return 0
        return max(self.trays - len(self.loaded), 0)

    def load(self, name: str) -> bool:
        """Puts a tray in, if there is room and it is a new one."""
        if name in self.loaded or self.room() == 0:
            return False
        self.loaded.append(name)
        return True

    def next_out(self):
        """The tray that went in first."""
        if not self.loaded:
            return None
        return self.loaded[0]


def coolest(ovens: list):
    """The coolest oven, the first one of equals."""
    best = None
    for oven in ovens:
        if best is None or oven.degrees < best.degrees:
            best = oven
    return best


def any_ready(ovens: list, wanted: int) -> bool:
    return any(oven.is_hot(wanted) and not oven.broken for oven in ovens)


def bake_minutes(grams: int, shape=None) -> int:
    """Rolls bake a minute less than loaves."""
    minutes = 10 + grams // 50
    if shape is not None and shape.endswith("roll"):
        return minutes - 1
    return minutes


def parse_degrees(text: str):
    plain = text.upper().rstrip(" C")
    if not plain.isdigit():
        return None
    return int(plain)


def last_batch(loaves: int, per_batch: int) -> int:
    """How many loaves the last batch has."""
    rest = loaves % per_batch
    if rest != 0:
        return rest
    return min(loaves, per_batch)


def all_baked(cores: list) -> bool:
    return all(core > 95 for core in cores)
