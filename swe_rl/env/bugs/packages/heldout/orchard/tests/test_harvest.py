from orchard.harvest import any_frost
from orchard.harvest import baskets_filled
from orchard.harvest import best_row
from orchard.harvest import grade
from orchard.harvest import is_ripe
from orchard.harvest import picker_pay
from orchard.harvest import picking_month
from orchard.harvest import rows_until_rain
from orchard.harvest import sound_weight
from orchard.harvest import streak


def test_is_ripe_at_the_limits():
    assert is_ripe(12, 7) is True


def test_is_ripe_not_when_sour():
    assert is_ripe(11, 7) is False


def test_is_ripe_not_when_hard():
    assert is_ripe(12, 8) is False


def test_is_ripe_well_within():
    assert is_ripe(15, 5) is True


def test_picking_month_of_late_kinds():
    assert picking_month("Boskoop") == 10


def test_picking_month_of_early_kinds():
    assert picking_month("early cox") == 7


def test_picking_month_of_other_kinds():
    assert picking_month("cox") == 9
    assert picking_month("cox not early") == 9


def test_picking_month_with_doubt():
    assert picking_month("ontario ??") == 10


def test_picking_month_with_marks_in_front():
    assert picking_month("?ontario") == 9


def test_baskets_filled_exactly():
    assert baskets_filled(24, 8) == 3


def test_baskets_filled_with_a_rest():
    assert baskets_filled(25, 8) == 4


def test_baskets_filled_nothing():
    assert baskets_filled(0, 8) == 0


def test_picker_pay_by_basket():
    assert picker_pay(20, 5) == 60


def test_picker_pay_by_hour():
    assert picker_pay(4, 5) == 55


def test_picker_pay_of_a_long_day():
    assert picker_pay(4, 13) == 110


def test_rows_until_rain_uses_all_the_time():
    assert rows_until_rain([30, 20, 10], 50) == 2


def test_rows_until_rain_stops_at_a_long_row():
    assert rows_until_rain([30, 90, 10], 50) == 1


def test_rows_until_rain_without_dry_time():
    assert rows_until_rain([30], 0) == 0


def test_rows_until_rain_all_rows():
    assert rows_until_rain([10, 10, 10], 90) == 3


def test_sound_weight_leaves_worms_out():
    assert sound_weight([(150, False), (180, True), (120, False)]) == 270


def test_sound_weight_of_nothing():
    assert sound_weight([]) == 0


def test_sound_weight_of_worms_only():
    assert sound_weight([(150, True)]) == 0


def test_grade_small_is_juice():
    assert grade(54, 0) == "juice"


def test_grade_spotty_is_juice():
    assert grade(80, 7) == "juice"


def test_grade_table_limits():
    assert grade(55, 0) == "table"
    assert grade(60, 6) == "table"


def test_grade_extra_from_its_diameter():
    assert grade(75, 0) == "extra"
    assert grade(74, 0) == "table"


def test_grade_extra_not_with_a_spot():
    assert grade(80, 1) == "table"


def test_any_frost_one_night():
    assert any_frost([4, -1, 3]) is True


def test_any_frost_not_at_zero():
    assert any_frost([2, 0]) is False


def test_any_frost_without_nights():
    assert any_frost([]) is False


def test_best_row_has_most():
    assert best_row({"a": 5, "b": 9, "c": 7}) == "b"


def test_best_row_of_one():
    assert best_row({"a": 0}) == "a"


def test_best_row_without_rows():
    assert best_row({}) is None


def test_streak_counts_days():
    assert streak([4, 1, 6]) == 3


def test_streak_starts_again_after_a_pause():
    assert streak([4, 1, 0, 6]) == 2


def test_streak_longest_at_the_end():
    assert streak([4, 0, 6, 2]) == 2


def test_streak_of_nothing():
    assert streak([]) == 0
    assert streak([0, 0]) == 0
