"""Rules allow or deny actions on paths; the first one that fits wins."""

from dataclasses import dataclass


@dataclass
class Rule:
    path: str
    action: str = "*"
    allow: bool = True
    weight: int = 0
    until: int = 0


def path_fits(path: str, pattern: str) -> bool:
    """'/docs/*' fits all below, '*.txt' fits all endings."""
    if pattern.endswith("*"):
        return path.startswith(pattern.rstrip("*"))
    if pattern.startswith("*"):
        return path.endswith(pattern.lstrip("*"))
    return path == pattern


def action_fits(action: str, pattern: str) -> bool:
    """A star fits every action; case does not matter."""
    return pattern == "*" or action.lower() == pattern.lower()


def first_rule(rules: list, path: str, action: str):
    """The first rule that fits, or None."""
    for rule in rules:
        if not path_fits(path, rule.path):
            continue
        if action_fits(action, rule.action):
            return rule
    return None


def is_allowed(rules: list, path: str, action: str) -> bool:
    """Without a rule that fits nothing is allowed."""
    rule = first_rule(rules, path, action)
    if rule is None:
        return False
    return rule.allow


def heaviest_rule(rules: list):
    """The rule with the largest weight, the last one of equals."""
    best = None
    for rule in rules:
        if best is None or rule.weight >= best.weight:
            best = rule
    return best


def expired(rule: Rule, day: int) -> bool:
    """After its last day; rules without one never expire."""
    if rule.until == 0:
        return False
    return day > rule.until


def active_rules(rules: list, day: int) -> list:
    return [rule for rule in rules if not expired(rule, day)]


def days_valid(rule: Rule, day: int):
    """Days left, this one included; None if it never expires."""
    if rule.until == 0:
        return None
    return max(rule.until - day + 1, 0)


def depth(path: str) -> int:
    """How many folders deep a path is."""
    plain = path.rstrip("/")
    if not plain:
        return 0
    return plain.count("/")


def parent(path: str) -> str:
    """The folder above, '/' for the top."""
    parts = path.rpartition("/")
    if parts[0] == "":
        return "/"
    return parts[0]


def leaf(path: str) -> str:
    """The last part of a path."""
    parts = path.rstrip("/").split("/")
    return parts[-1]


def conflicting(first: Rule, second: Rule) -> bool:
    """Same path and action, but one allows and one denies."""
    if first.path != second.path or first.action != second.action:
        return False
    return first.allow != second.allow


def denied_paths(rules: list) -> list:
    """Paths of rules that deny, up to the first rule for everything."""
    paths = []
    for rule in rules:
        if rule.path == "*":
            break
        if not rule.allow:
            paths.append(rule.path)
    return paths
