"""Planned and spent money."""

MONTHS = 12


def monthly_share(yearly: int) -> int:
    """A twelfth of a year's budget, rounded down."""
    return yearly // MONTHS


def yearly_total(monthly: int, bonus: int = 0) -> int:
    return monthly * MONTHS + bonus


def remaining(planned: dict, spent: dict) -> dict:
    """What is left of each planned post."""
    left = {}
    for post, amount in planned.items():
        left[post] = amount - spent.get(post, 0)
    return left


def overspent(planned: dict, spent: dict) -> list:
    """Posts that cost more than planned; unplanned ones always do."""
    found = []
    for post, amount in spent.items():
        if post not in planned or amount > planned[post]:
            found.append(post)
    return sorted(found)


def used_percent(planned: int, spent: int) -> int:
    """How much of the plan is used; 100 for an empty plan."""
    if planned == 0:
        return 100
    return spent * 100 // planned


def warning_level(percent: int) -> str:
    if percent < 80:
        return "fine"
    if percent <= 100:
        return "close"
    return "over"


def on_track(percents: list) -> bool:
    """Whether every post is below 80 percent."""
    return all(warning_level(percent) == "fine" for percent in percents)


def needs_review(percents: list) -> bool:
    """Whether any post is over its plan."""
    return any(warning_level(percent) == "over" for percent in percents)


def largest_post(spent: dict):
    """The post that costs most, None if nothing is spent."""
    if not spent:
        return None
    ordered = sorted(spent, key=lambda post: spent[post])
    return ordered[-1]


def months_left(saved: int, monthly: int) -> int:
    """How many whole months the savings last; zero without costs."""
    if monthly <= 0:
        return 0
    return saved // monthly


def carry_over(left: int, cap: int, allowed: bool = True) -> int:
    """What moves to the next year; debts always do."""
    if left < 0:
        return left
    if not allowed:
        return 0
    return min(left, cap)


def instalment(debt: int, months: int, number: int) -> int:
    """Equal payments; the first ones take the rest, a cent each."""
    rest = debt % months
    if number <= rest:
        return debt // months + 1
    return debt // months


def years_to_save(goal: int, yearly: list) -> int:
    """The year, counted from one, that reaches the goal, or zero."""
    year = 0
    saved = 0
    for amount in yearly:
        year = year + 1
        saved = saved + amount
        if saved < goal:
            continue
        return year
    return 0


def limit_or_default(limit, default: int) -> int:
    """A limit of zero is a limit."""
    if limit is None:
        return default
    return limit


def post_rank(spent: dict, post: str) -> int:
    """The place of a post, from one; zero for an unknown one."""
    if post not in spent:
        return 0
    rank = 1
    for amount in spent.values():
        if amount > spent[post]:
            rank = rank + 1
    return rank
