"""People who borrow."""

from dataclasses import dataclass, field


@dataclass
class Member:
    name: str
    card: str
    age: int = 30
    active: bool = True
    loans: list = field(default_factory=list)


CHILD_AGE = 14
CHILD_LIMIT = 3
ADULT_LIMIT = 6


def loan_limit(member: Member) -> int:
    """How many books a member may hold at a time."""
    if member.age < CHILD_AGE:
        return CHILD_LIMIT
    return ADULT_LIMIT


def can_borrow(member: Member, owed: int) -> bool:
    """Active members below their limit who owe nothing may borrow."""
    if not member.active:
        return False
    if owed > 0:
        return False
    return len(member.loans) < loan_limit(member)


def free_slots(member: Member) -> int:
    """How many more books fit, never less than zero."""
    left = loan_limit(member) - len(member.loans)
    return max(left, 0)


def valid_card(card: str) -> bool:
    """Cards look like 'M-1234X'."""
    if not card.startswith("M-"):
        return False
    return card.endswith("X") and len(card) == 7


def short_card(card: str) -> str:
    """The card number without its prefix and leading zeros."""
    parts = card.split("-")
    return parts[-1].lstrip("0")


def next_card_number(numbers: list) -> int:
    """One more than the largest number in use, one for the first."""
    if not numbers:
        return 1
    return max(numbers) + 1


def find_member(members: list, name: str):
    """The first active member with this name, in any case."""
    wanted = name.lower()
    for member in members:
        if not member.active:
            continue
        if member.name.lower() == wanted:
            return member
    return None


def deactivate(member: Member) -> bool:
    """Only a member without loans can leave."""
    if member.loans:
        return False
    member.active = False
    return True


def anyone_over_limit(members: list) -> bool:
    return any(len(one.loans) > loan_limit(one) for one in members)
