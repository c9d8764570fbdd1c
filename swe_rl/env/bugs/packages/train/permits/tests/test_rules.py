from permits.rules import Rule
from permits.rules import action_fits
from permits.rules import active_rules
from permits.rules import conflicting
from permits.rules import days_valid
from permits.rules import denied_paths
from permits.rules import depth
from permits.rules import expired
from permits.rules import first_rule
from permits.rules import heaviest_rule
from permits.rules import is_allowed
from permits.rules import leaf
from permits.rules import parent
from permits.rules import path_fits


def test_path_fits_exactly():
    assert path_fits("/a", "/a")
    assert not path_fits("/a/b", "/a")


def test_path_fits_all_below():
    assert path_fits("/docs/a", "/docs/*")
    assert not path_fits("/old/docs/", "/docs/*")


def test_path_fits_endings():
    assert path_fits("/docs/a.txt", "*.txt")
    assert not path_fits(".txt/a", "*.txt")


def test_action_fits_in_any_case():
    assert action_fits("READ", "read")
    assert action_fits("read", "Read")


def test_action_fits_every_action():
    assert action_fits("read", "*")


def test_action_fits_not_others():
    assert not action_fits("read", "write")


def test_first_rule_wins():
    rules = [Rule("/a", "write"), Rule("/a", "read"), Rule("/a")]
    assert first_rule(rules, "/a", "read") is rules[1]


def test_first_rule_skips_other_paths():
    rules = [Rule("/b"), Rule("/a")]
    assert first_rule(rules, "/a", "read") is rules[1]


def test_first_rule_none():
    assert first_rule([Rule("/b")], "/a", "read") is None


def test_is_allowed_by_a_rule():
    assert is_allowed([Rule("/a")], "/a", "read") is True


def test_is_allowed_not_when_denied():
    assert is_allowed([Rule("/a", allow=False)], "/a", "read") is False


def test_is_allowed_not_without_rule():
    assert is_allowed([], "/a", "read") is False


def test_heaviest_rule_by_weight():
    rules = [Rule("/a", weight=1), Rule("/b", weight=5), Rule("/c", weight=2)]
    assert heaviest_rule(rules) is rules[1]


def test_heaviest_rule_takes_the_last_of_equals():
    rules = [Rule("/a", weight=5), Rule("/b", weight=5)]
    assert heaviest_rule(rules) is rules[1]


def test_heaviest_rule_of_none():
    assert heaviest_rule([]) is None


def test_expired_after_the_last_day():
    assert expired(Rule("/a", until=10), 11)


def test_expired_not_on_the_last_day():
    assert not expired(Rule("/a", until=10), 10)


def test_expired_never():
    assert expired(Rule("/a"), 9999) is False


def test_active_rules_drops_expired():
    rules = [Rule("/a", until=5), Rule("/b", until=50)]
    assert active_rules(rules, 20) == [rules[1]]


def test_active_rules_of_none():
    assert active_rules([], 20) == []


def test_days_valid_includes_this_day():
    assert days_valid(Rule("/a", until=12), 10) == 3
    assert days_valid(Rule("/a", until=10), 10) == 1


def test_days_valid_over():
    assert days_valid(Rule("/a", until=10), 15) == 0


def test_days_valid_forever():
    assert days_valid(Rule("/a"), 15) is None


def test_depth_counts_folders():
    assert depth("/a/b") == 2


def test_depth_ignores_a_slash_at_the_end():
    assert depth("/a/b/") == 2


def test_depth_of_the_top():
    assert depth("/") == 0


def test_parent_of_a_path():
    assert parent("/a/b") == "/a"


def test_parent_at_the_top():
    assert parent("/a") == "/"


def test_leaf_is_the_last_part():
    assert leaf("/a/b") == "b"


def test_leaf_ignores_a_slash_at_the_end():
    assert leaf("/a/b/") == "b"


def test_conflicting_allow_and_deny():
    assert conflicting(Rule("/a"), Rule("/a", allow=False))


def test_conflicting_not_when_equal():
    assert not conflicting(Rule("/a"), Rule("/a"))


def test_conflicting_not_on_other_paths():
    assert conflicting(Rule("/a"), Rule("/b", allow=False)) is False


def test_conflicting_not_on_other_actions():
    assert not conflicting(Rule("/a", "read"), Rule("/a", allow=False))


def test_denied_paths_of_rules_that_deny():
    rules = [Rule("/a"), Rule("/b", allow=False), Rule("/c", allow=False)]
    assert denied_paths(rules) == ["/b", "/c"]


def test_denied_paths_up_to_everything():
    rules = [Rule("/a", allow=False), Rule("*"), Rule("/c", allow=False)]
    assert denied_paths(rules) == ["/a"]
