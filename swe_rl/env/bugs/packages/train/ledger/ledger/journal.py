"""Entries: lists of (account, amount); debits are positive."""


class Journal:
    """Balanced entries in the order of posting."""

    def __init__(self) -> None:
        self.entries = []
        self.closed_day = 0

    def post(self, day: int, text: str, lines: list) -> bool:
        """Refuses closed days and entries that do not balance."""
        if day <= self.closed_day:
            return False
        if not is_balanced(lines):
            return False
        self.entries.append((day, text, lines))
        return True

    def balance(self, account: str, until=None) -> int:
        """Sum of an account, up to a day if one is given."""
        total = 0
        for day, _, lines in self.entries:
            if until is not None and day > until:
                continue
            for name, amount in lines:
                if name == account:
                    total = total + amount
        return total

    def search(self, words: str) -> list:
        """Texts that contain the words, in any case."""
        wanted = words.lower()
        return [text for _, text, _ in self.entries if wanted in text.lower()]

    def last_day(self):
        """The latest day with an entry, None without entries."""
        if not self.entries:
            return None
        return max(day for day, _, _ in self.entries)

    def close_until(self, day: int) -> bool:
        """Closes days; an earlier day opens nothing again."""
        if day < self.closed_day:
            return False
        self.closed_day = day
        return True

    def undo_last(self) -> bool:
        """Removes the last entry unless its day is closed."""
        if not self.entries:
            return False
        last = self.entries[-1]
        if last[0] <= self.closed_day:
            return False
        self.entries.pop()
        return True

    def first_text(self) -> str:
        if not self.entries:
            return ""
        return self.entries[0][1]


def is_balanced(lines: list) -> bool:
    """At least two lines whose amounts cancel out."""
    if len(lines) < 2:
        return False
    return sum(amount for _, amount in lines) == 0


def reversed_lines(lines: list) -> list:
    """The lines that take an entry back."""
    return [(name, 0 - amount) for name, amount in lines]


def debit_count(lines: list) -> int:
    count = 0
    for _, amount in lines:
        if amount <= 0:
            continue
        count = count + 1
    return count


def split_amount(amount: int, parts: int) -> list:
    """Equal shares; the first one gets what is left over."""
    share = amount // parts
    shares = [share] * parts
    shares[0] = share + amount % parts
    return shares
