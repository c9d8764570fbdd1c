from permits.roles import User
from permits.roles import at_least
from permits.roles import count_role
from permits.roles import demote
from permits.roles import has_groups
from permits.roles import highest_role
from permits.roles import join_group
from permits.roles import outranks
from permits.roles import parse_role
from permits.roles import promote
from permits.roles import shares_group
from permits.roles import strike


def test_parse_role_in_any_case():
    assert parse_role("Editor") == "editor"


def test_parse_role_with_an_at_sign():
    assert parse_role("@admin") == "admin"


def test_parse_role_unknown():
    assert parse_role("owner") is None
    assert parse_role("admin@") is None


def test_at_least_the_same_rank():
    assert at_least(User("ann", "editor"), "editor")


def test_at_least_lower_rank():
    assert not at_least(User("ann", "member"), "editor")


def test_at_least_not_when_blocked():
    assert at_least(User("ann", "admin", blocked=True), "guest") is False


def test_outranks_higher():
    assert outranks(User("ann", "admin"), User("bob", "member"))


def test_outranks_not_equal():
    assert not outranks(User("ann", "editor"), User("bob", "editor"))


def test_promote_one_rank():
    user = User("ann", "member")
    assert promote(user) is True
    assert user.role == "editor"


def test_promote_not_admins():
    assert promote(User("ann", "admin")) is False


def test_promote_not_blocked_users():
    user = User("ann", "member", blocked=True)
    assert promote(user) is False
    assert user.role == "member"


def test_demote_one_rank():
    assert demote(User("ann", "editor")) == "member"


def test_demote_guests_stay():
    assert demote(User("ann", "guest")) == "guest"


def test_highest_role_of_several():
    users = [User("a", "member"), User("b", "editor"), User("c", "guest")]
    assert highest_role(users) == "editor"


def test_highest_role_leaves_blocked_out():
    users = [User("a", "member"), User("b", "admin", blocked=True)]
    assert highest_role(users) == "member"


def test_highest_role_of_none():
    assert highest_role([]) is None


def test_strike_counts():
    user = User("ann")
    assert strike(user) is False
    assert user.strikes == 1


def test_strike_blocks_at_the_limit():
    user = User("ann", strikes=2)
    assert strike(user) is True


def test_strike_blocks_above_the_limit():
    user = User("ann", strikes=7)
    assert strike(user) is True


def test_shares_group_one_is_enough():
    assert shares_group(User("a", groups=["x", "y"]), User("b", groups=["y"]))


def test_shares_group_none():
    assert not shares_group(User("a", groups=["x"]), User("b", groups=["y"]))
    assert not shares_group(User("a"), User("b", groups=["y"]))


def test_has_groups_all():
    assert has_groups(User("a", groups=["x", "y"]), ["y", "x"])
    assert has_groups(User("a"), [])


def test_has_groups_not_when_one_is_missing():
    assert not has_groups(User("a", groups=["x"]), ["x", "y"])


def test_join_group_adds():
    user = User("ann")
    assert join_group(user, "x") is True
    assert user.groups == ["x"]


def test_join_group_not_twice():
    user = User("ann", groups=["x"])
    assert join_group(user, "x") is False
    assert user.groups == ["x"]


def test_join_group_not_when_blocked():
    assert join_group(User("ann", blocked=True), "x") is False


def test_count_role_skips_others():
    users = [User("a", "guest"), User("b", "admin"), User("c", "admin")]
    assert count_role(users, "admin") == 2


def test_count_role_none():
    assert count_role([User("a", "guest")], "admin") == 0
