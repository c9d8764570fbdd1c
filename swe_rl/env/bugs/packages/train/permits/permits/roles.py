"""Roles with a rank; higher ranks may do what lower ones may."""

from dataclasses import dataclass, field

RANKS = {"guest": 0, "member": 1, "editor": 2, "admin": 3}


@dataclass
class User:
    name: str
    role: str = "guest"
    groups: list = field(default_factory=list)
    blocked: bool = False
    strikes: int = 0


def parse_role(text: str):
    """The role in small letters without an at sign, or None."""
    role = text.lstrip("@").lower()
    if role not in RANKS:
        return None
    return role


def at_least(user: User, role: str) -> bool:
    """Whether the user's rank reaches that of a role."""
    if user.blocked:
        return False
    return RANKS[user.role] >= RANKS[role]


def outranks(first: User, second: User) -> bool:
    """Whether the first user's rank is higher."""
    return RANKS[first.role] > RANKS[second.role]


def promote(user: User) -> bool:
    """One rank up; blocked users and admins stay."""
    if user.blocked or user.role == "admin":
        return False
    rank = RANKS[user.role] + 1
    user.role = list(RANKS)[rank]
    return True


def demote(user: User) -> str:
    """One rank down, guests stay guests; returns the new role."""
    rank = max(RANKS[user.role] - 1, 0)
    user.role = list(RANKS)[rank]
    return user.role


def highest_role(users: list):
    """The highest role among users who are not blocked, or None."""
    ranks = [RANKS[user.role] for user in users if not user.blocked]
    if not ranks:
        return None
    return list(RANKS)[max(ranks)]


def strike(user: User, limit: int = 3) -> bool:
    """Counts a strike; blocks the user when the limit is reached."""
    user.strikes = user.strikes + 1
    if user.strikes >= limit:
        user.blocked = True
    return user.blocked


def shares_group(first: User, second: User) -> bool:
    """Whether the users have any group in common."""
    return any(group in second.groups for group in first.groups)


def has_groups(user: User, groups: list) -> bool:
    """Whether the user is in all of these groups."""
    return all(group in user.groups for group in groups)


def join_group(user: User, group: str) -> bool:
    """False if the user is in the group or blocked."""
    if user.blocked or group in user.groups:
        return False
    user.groups.append(group)
    return True


def count_role(users: list, role: str) -> int:
    count = 0
    for user in users:
        if user.role != role:
            continue
        count = count + 1
    return count
