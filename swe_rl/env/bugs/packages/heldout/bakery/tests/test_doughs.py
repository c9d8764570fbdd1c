from bakery.doughs import checks_until
from bakery.doughs import flour_type
from bakery.doughs import folds_before
from bakery.doughs import has_flour
from bakery.doughs import is_sticky
from bakery.doughs import knead_minutes
from bakery.doughs import last_feeding
from bakery.doughs import scraps_total
from bakery.doughs import starter_kind
from bakery.doughs import water_for


def test_has_flour_in_one_sack():
    assert has_flour([300, 900], 800)


def test_has_flour_exactly_enough():
    assert has_flour([800], 800)


def test_has_flour_not_in_two_sacks_together():
    assert not has_flour([500, 500], 800)


def test_has_flour_without_sacks():
    assert not has_flour([], 10)


def test_water_for_rounds_down():
    assert water_for(505, 65) == 328


def test_water_for_very_little_flour():
    assert water_for(10, 60) == 20


def test_is_sticky_above_three_quarters():
    assert is_sticky(301, 400) is True
    assert is_sticky(300, 400) is False


def test_is_sticky_rounds_the_quarter_down():
    assert is_sticky(5, 6) is False
    assert is_sticky(6, 6) is True


def test_is_sticky_without_flour():
    assert is_sticky(0, 0) is True


def test_knead_minutes_by_machine():
    assert knead_minutes(1100, False) == 9


def test_knead_minutes_by_hand():
    assert knead_minutes(1100, True) == 18


def test_knead_minutes_has_a_limit():
    assert knead_minutes(4000, True) == 30
    assert knead_minutes(8000, False) == 30


def test_flour_type_of_a_label():
    assert flour_type("Type 550") == 550
    assert flour_type("1050") == 1050


def test_flour_type_of_other_labels():
    assert flour_type("rye") is None
    assert flour_type("550 Type") is None


def test_starter_kind_in_any_case():
    assert starter_kind("RYE") == "rye"
    assert starter_kind("spelt") == "spelt"


def test_starter_kind_of_unknown_names():
    assert starter_kind("Corn") == "wheat"


def test_folds_before_the_end():
    assert folds_before(6, 2) == 2
    assert folds_before(7, 2) == 3


def test_folds_before_short_rests():
    assert folds_before(2, 1) == 0
    assert folds_before(3, 1) == 2


def test_checks_until_high_enough():
    assert checks_until([5, 8, 11, 12], 10) == 3


def test_checks_until_exactly_high_enough():
    assert checks_until([5, 10, 11], 10) == 2


def test_checks_until_never_high_enough():
    assert checks_until([5, 6], 10) == 2


def test_checks_until_without_looking():
    assert checks_until([], 10) == 0


def test_scraps_total_skips_small_pieces():
    assert scraps_total([40, 9, 30], 10) == 70


def test_scraps_total_takes_the_smallest():
    assert scraps_total([10, 25], 10) == 35


def test_scraps_total_of_nothing():
    assert scraps_total([], 10) == 0


def test_last_feeding_in_any_order():
    assert last_feeding([8, 20, 14]) == 20


def test_last_feeding_of_nothing():
    assert last_feeding([]) is None
