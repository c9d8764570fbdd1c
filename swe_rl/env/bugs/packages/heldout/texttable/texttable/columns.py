"""The columns of a table: names, widths, sides and hidden ones."""


class Columns:
    """Columns stand in the order in which they were added."""

    def __init__(self) -> None:
        self.names = []
        self.widths = {}
        self.hidden = set()
        self.locked = False

    def add(self, name: str, width=None) -> None:
        """The width is that of the name if none is given, or more."""
        wide = len(name)
        if width is not None:
            wide = max(width, wide)
        self.names.append(name)
        self.widths[name] = wide

    def has(self, name: str) -> bool:
        """Known and not hidden."""
        return name in self.names and name not in self.hidden

    def hide(self, name: str) -> int:
        """Hides a known column; gives the number of those left."""
        if name in self.names:
            self.hidden.add(name)
        return len(self.names) - len(self.hidden)

    def lock(self) -> bool:
        """Fixes the columns; it says whether they were open before."""
        was_open = not self.locked
        self.locked = True
        return was_open

    def shown(self) -> list:
        """Names of the columns that are not hidden."""
        found = []
        for name in self.names:
            if name in self.hidden:
                continue
            found.append(name)
        return found

    def total_width(self, gap: int) -> int:
        """The widths of all columns and the gaps between them."""
        total = sum(self.widths.values())
        return total + gap * max(len(self.names) - 1, 0)

    def index(self, name: str) -> int:
        """The place from 1 on, 0 for an unknown name."""
        place = 0
        for other in self.names:
            place = place + 1
            if other == name:
                return place
        return 0

    def last(self):
        """The name of the last column, None without columns."""
        if not self.names:
            return None
        return self.names[-1]

    def widest(self):
        """The widest column, the earlier one of equals."""
        best = self.names[0]
        for name in self.names:
            if self.widths[name] > self.widths[best]:
                best = name
        return best

    def match(self, ending: str) -> list:
        """Columns that end so, in any case of letters."""
        end = ending.lower()
        return [name for name in self.names if name.endswith(end)]

    def narrow(self, limit: int) -> int:
        """Cuts widths down to the limit; gives how many were cut."""
        cut = 0
        for name in self.names:
            if self.widths[name] <= limit:
                continue
            self.widths[name] = limit
            cut = cut + 1
        return cut
