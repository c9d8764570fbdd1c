"""Books that are out, by code."""

LOAN_DAYS = 21
MAX_RENEWALS = 2


class LoanDesk:
    """Keeps who holds which book until when."""

    def __init__(self) -> None:
        self.due = {}
        self.holder = {}
        self.renewals = {}

    def lend(self, code: str, name: str, day: int) -> bool:
        """False if the book is out already."""
        if code in self.due:
            return False
        self.due[code] = day + LOAN_DAYS
        self.holder[code] = name
        return True

    def give_back(self, code: str, day: int) -> int:
        """Takes a book back; returns how many days it was late."""
        if code not in self.due:
            return 0
        late = day - self.due.pop(code)
        self.holder.pop(code)
        return max(late, 0)

    def renew(self, code: str) -> bool:
        """Adds another period, a limited number of times."""
        used = self.renewals.get(code, 0)
        if code not in self.due or used >= MAX_RENEWALS:
            return False
        self.renewals[code] = used + 1
        self.due[code] = self.due[code] + LOAN_DAYS
        return True

    def overdue(self, day: int) -> list:
        """Codes whose last day is over."""
        return sorted(code for code, due in self.due.items() if due < day)

    def held_by(self, name: str) -> list:
        holder = self.holder
        return sorted(code for code in holder if holder[code] == name)

    def next_due(self):
        """The earliest last day, None if nothing is out."""
        if not self.due:
            return None
        return min(self.due.values())

    def holder_label(self, code: str) -> str:
        """Who has the book, in capitals."""
        name = self.holder.get(code)
        if name is None:
            return "ON SHELF"
        return name.upper()

    def has_any(self, codes: list) -> bool:
        """Whether at least one of these books is out."""
        return any(code in self.due for code in codes)


def days_left(due: int, day: int):
    """Days until a book is due, None once it is late."""
    if day > due:
        return None
    return due - day


def reminder_days(due: int, step: int, count: int) -> list:
    """Days for reminders after the last day, one each step."""
    days = []
    for number in range(count):
        days.append(due + step * number)
    return days


def waiting_place(queue: list, name: str) -> int:
    """The place in a waiting list counted from one, zero if absent."""
    place = 1
    for other in queue:
        if other == name:
            return place
        place = place + 1
    return 0
