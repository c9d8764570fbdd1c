"""One track: its title, artist and length in seconds."""


class Track:
    """Tags are small words; the year may be unknown."""

    def __init__(self, title: str, artist: str, seconds: int) -> None:
        self.title = title
        self.artist = artist
        self.seconds = seconds
        self.year = None
        self.tags = []

    def length_text(self) -> str:
        """Minutes and two digits of seconds."""
        minutes = self.seconds // 60
        return f"{minutes}:{self.rest_seconds():02d}"

    def rest_seconds(self) -> int:
        """Seconds on top of the whole minutes."""
        return self.seconds % 60

    def is_long(self, limit=300) -> bool:
        return self.seconds >= limit

    def label(self) -> str:
        """Artist in capitals and title; tracks without artist are unknown."""
        artist = self.artist
        if not artist:
            artist = "unknown"
        return artist.upper() + " - " + self.title

    def is_live(self) -> bool:
        """Live recordings say so at the end of the title or by a tag."""
        title = self.title.lower()
        return title.endswith("(live)") or "live" in self.tags

    def age(self, year: int):
        """Years since it came out, None if that is unknown."""
        if self.year is None:
            return None
        return year - self.year

    def sort_title(self) -> str:
        """The title without an opening article, in small letters."""
        title = self.title.lower()
        if title.startswith("the "):
            title = title[4:]
        return title.lstrip()

    def add_tag(self, tag: str) -> bool:
        """False for a tag that is there already."""
        fresh = tag not in self.tags
        if fresh:
            self.tags.append(tag)
        return fresh

    def main_tag(self) -> str:
        """The first tag, pop for a track without tags."""
        if len(self.tags) == 0:
            return "pop"
        return self.tags[0]

    def same_as(self, title: str, artist: str) -> bool:
        """Compares the title in any case and the artist exactly."""
        same = self.title.lower() == title.lower()
        return same and self.artist == artist

    def decade(self) -> str:
        """The decade like 1990s, old for all before 1950."""
        known = self.year is not None
        if known and self.year >= 1950:
            return str(self.year // 10) + "0s"
        return "old"
