from orchard.cellar import climate_ok
from orchard.cellar import crate_code
from orchard.cellar import is_crate_code
from orchard.cellar import juice_litres
from orchard.cellar import latest_check
from orchard.cellar import layers_in
from orchard.cellar import may_store
from orchard.cellar import next_crate
from orchard.cellar import shelf_of
from orchard.cellar import top_is_lightest


def test_crate_code_drops_hashes_in_front():
    assert crate_code("## C12#L") == "C12#L"


def test_crate_code_drops_dots_behind():
    assert crate_code(".C12L..") == ".C12L"


def test_crate_code_in_capitals():
    assert crate_code("c12l") == "C12L"


def test_crate_code_keeps_hashes_behind():
    assert crate_code("C1#") == "C1#"


def test_is_crate_code_accepts_left():
    assert is_crate_code("C12L") is True


def test_is_crate_code_accepts_right():
    assert is_crate_code("C7R") is True


def test_is_crate_code_needs_a_side():
    assert is_crate_code("C12M") is False


def test_is_crate_code_needs_digits():
    assert is_crate_code("CxxL") is False


def test_is_crate_code_needs_the_letter_in_front():
    assert is_crate_code("D12L") is False
    assert is_crate_code("L12C") is False


def test_is_crate_code_not_for_none():
    assert is_crate_code(None) is False


def test_shelf_of_first_crate():
    assert shelf_of(1, 4) == 1


def test_shelf_of_last_on_a_shelf():
    assert shelf_of(8, 4) == 2


def test_shelf_of_first_on_a_shelf():
    assert shelf_of(9, 4) == 3


def test_may_store_beside_apples():
    assert may_store("cox", ["gala", "pear"]) is True


def test_may_store_without_neighbours():
    assert may_store("cox", []) is True


def test_may_store_not_beside_onions():
    assert may_store("cox", ["gala", "onion"]) is False


def test_may_store_not_the_smelly():
    assert may_store("cabbage", []) is False


def test_layers_in_a_light_crate():
    assert layers_in(3, [5, 9]) == 1


def test_layers_in_at_a_limit():
    assert layers_in(5, [5, 9]) == 2


def test_layers_in_a_full_crate():
    assert layers_in(12, [5, 9]) == 3


def test_climate_ok_lowest_degrees():
    assert climate_ok(1, 90) is True
    assert climate_ok(0, 90) is False


def test_climate_ok_highest_degrees():
    assert climate_ok(5, 90) is True
    assert climate_ok(6, 90) is False


def test_climate_ok_humidity():
    assert climate_ok(3, 85) is True
    assert climate_ok(3, 84) is False


def test_next_crate_skips_empty():
    crates = [{"code": "C1L", "kilos": 0}, {"code": "C2L", "kilos": 9}]
    assert next_crate(crates, ["C3L"]) == "C2L"


def test_next_crate_skips_locked():
    crates = [{"code": "C1L", "kilos": 9}, {"code": "C2L", "kilos": 8}]
    assert next_crate(crates, ["C1L"]) == "C2L"


def test_next_crate_takes_the_first():
    crates = [{"code": "C1L", "kilos": 5}, {"code": "C2L", "kilos": 8}]
    assert next_crate(crates, []) == "C1L"


def test_next_crate_of_none():
    assert next_crate([], ["C1L"]) is None


def test_top_is_lightest_in_order():
    crates = [{"kilos": 3}, {"kilos": 5}, {"kilos": 4}]
    assert top_is_lightest(crates) is True


def test_top_is_lightest_with_an_equal_one():
    assert top_is_lightest([{"kilos": 3}, {"kilos": 3}]) is True


def test_top_is_lightest_not_above_a_lighter_one():
    crates = [{"kilos": 3}, {"kilos": 2}, {"kilos": 4}]
    assert top_is_lightest(crates) is False


def test_top_is_lightest_without_crates():
    assert top_is_lightest([]) is True


def test_juice_litres_from_kilos():
    assert juice_litres(50, "new") == 30


def test_juice_litres_are_rounded_down():
    assert juice_litres(8, "new") == 4


def test_juice_litres_of_an_old_press():
    assert juice_litres(50, "very old") == 29


def test_juice_litres_old_elsewhere_in_the_name():
    assert juice_litres(50, "old giant") == 30


def test_juice_litres_never_negative():
    assert juice_litres(0, "old") == 0


def test_latest_check_is_the_last():
    assert latest_check(["may 1", "may 9", "may 20"], "-") == "may 20"


def test_latest_check_skips_the_undated():
    assert latest_check(["may 1", "may 9", None], "-") == "may 9"


def test_latest_check_of_one():
    assert latest_check(["may 1"], "-") == "may 1"


def test_latest_check_of_nothing():
    assert latest_check([], "-") == "-"
    assert latest_check([None], "-") == "-"
