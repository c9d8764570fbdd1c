"""Days of the year and of the week; weekdays count from 0, Monday."""

NAMES = ["monday", "tuesday", "wednesday", "thursday", "friday"]
MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year: int) -> bool:
    """Every fourth year, but of whole centuries every fourth one."""
    if year % 100 == 0:
        return year % 400 == 0
    return year % 4 == 0


def month_days(month: int, leap: bool) -> int:
    """Months count from 1; February has a day more in leap years."""
    days = MONTHS[month - 1]
    if leap and month == 2:
        days = days + 1
    return days


def day_of_year(month: int, day: int) -> int:
    """January the first is day 1; for years that are not leap."""
    before = sum(MONTHS[: month - 1])
    return before + day


def weekday(day: int, first: int) -> int:
    """The weekday of a day from 0 on, if day 0 has the first one."""
    return (day + first) % 7


def eve(weekday: int) -> int:
    """The weekday before; that of Monday is Sunday."""
    return (weekday - 1) % 7


def is_weekend(weekday: int) -> bool:
    """Saturday and Sunday."""
    return weekday >= 5


def week_of(day: int) -> int:
    """Weeks of seven days from day 0 on, counted from 1."""
    full = day // 7
    return 1 + full


def short_name(number: int) -> str:
    """Three capitals for a working day, nothing for others."""
    if number < 0 or number >= len(NAMES):
        return ""
    return NAMES[number][:3].upper()


def weekday_number(name: str):
    """The number of a name in any case, None for unknown ones."""
    word = name.lower()
    if word in NAMES:
        return NAMES.index(word)
    return None


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd and 4th; 11th to 13th as well."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    if 11 <= day and day <= 13:
        ending = "th"
    return str(day) + ending


def next_free(day: int, busy: set) -> int:
    """The first day from this one on that is not busy."""
    while day in busy:
        day = day + 1
    return day


def count_weekends(days: list) -> int:
    """How many weekdays of the list are at the end of the week."""
    count = 0
    for number in days:
        if number != 5 and number != 6:
            continue
        count += 1
    return count
