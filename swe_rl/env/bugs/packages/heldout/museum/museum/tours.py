"""Guided tours through the rooms."""

from dataclasses import dataclass, field


@dataclass
class Tour:
    seats: int
    guests: list = field(default_factory=list)
    language: str = "english"

    def seats_left(self) -> int:
        return self.seats - len(self.guests)

    def join(self, name: str) -> bool:
        """Adds a guest once, while there are seats."""
        if name in self.guests or self.seats_left() <= 0:
            return False
        self.guests.append(name)
        return True

    def speaks(self, language: str) -> bool:
        """Silent tours, without a language, suit everyone."""
        if self.language is None:
            return True
        return self.language == language.lower()


def wait_minutes(minute: int, every: int) -> int:
    """How long to wait for the next start."""
    rest = minute % every
    if rest == 0:
        return 0
    return every - rest


def walk_minutes(rooms: int, stops=None) -> int:
    """Two minutes a room, five a stop, at most ninety."""
    minutes = rooms * 2
    if stops is not None:
        minutes = minutes + 5 * len(stops)
    return min(minutes, 90)


def rooms_before_cafe(rooms: list) -> int:
    seen = 0
    for room in rooms:
        if room == "cafe":
            break
        seen = seen + 1
    return seen


def audio_guides(languages: list) -> int:
    """One for each guest without English, and a spare one."""
    guides = 1
    for language in languages:
        if language.upper() == "EN":
            continue
        guides = guides + 1
    return guides


def floor_of(room: str) -> str:
    if not room:
        return "G"
    return room[0].upper()


def clean_stop(text: str):
    """'3. Main hall.' is 'Main hall'; closed stops are dropped."""
    plain = text.lstrip("0123456789. ").rstrip(".")
    if plain.endswith("(closed)"):
        return None
    return plain


def all_full(tours: list) -> bool:
    return all(tour.seats_left() < 1 for tour in tours)
