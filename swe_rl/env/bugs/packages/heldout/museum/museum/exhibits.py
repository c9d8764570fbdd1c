"""The things on show and what is known of them."""

from dataclasses import dataclass


@dataclass
class Exhibit:
    title: str
    year: int
    value: int = 0
    on_loan: bool = False

    def age_in(self, year: int) -> int:
        """How old it is in a year; never below zero."""
        return max(year - self.year, 0)

    def is_treasure(self) -> bool:
        return self.value >= 10000 and not self.on_loan


def century(year: int) -> int:
    """The years 1 to 100 are the first century."""
    return (year - 1) // 100 + 1


def oldest_title(exhibits: list) -> str:
    if not exhibits:
        return ""
    ordered = sorted(exhibits, key=lambda exhibit: exhibit.year)
    return ordered[0].title


def sort_title(title: str) -> str:
    """The title in small letters and without the article."""
    plain = title.lower()
    if plain.startswith("the "):
        return plain[4:]
    return plain


def artist_of(label: str):
    """The last part of a label like 'Fog, oil, Turner'."""
    if "," not in label:
        return None
    return label.split(", ")[-1]


def catalog_number(text: str) -> int:
    number = 0
    digits = text.lstrip("No. ")
    if digits.isdigit():
        number = int(digits)
    return number


def first_gap(hooks: list) -> int:
    """The first number missing along a wall of numbered hooks."""
    wanted = 1
    for hook in hooks:
        if hook != wanted:
            break
        wanted = wanted + 1
    return wanted


def loaned_value(exhibits: list) -> int:
    """What the exhibits on loan are worth together."""
    total = 0
    for exhibit in exhibits:
        if not exhibit.on_loan:
            continue
        total = total + exhibit.value
    return total


def all_dated(exhibits: list) -> bool:
    return all(exhibit.year is not None for exhibit in exhibits)
