from almanac import shifts


def test_crew_on_first_days():
    assert shifts.crew_on(1, ["red", "blue", "green"]) == "blue"


def test_crew_on_later_day():
    assert shifts.crew_on(8, ["red", "blue", "green"]) == "green"


def test_repeats_on_first_day():
    assert shifts.repeats(5, 5, 3) is True


def test_repeats_later():
    assert shifts.repeats(11, 5, 3) is True


def test_repeats_not_between():
    assert shifts.repeats(7, 5, 3) is False


def test_repeats_not_before():
    assert shifts.repeats(2, 5, 3) is False


def test_days_until_goal():
    assert shifts.days_until(3, 10) == 7


def test_days_until_past_goal():
    assert shifts.days_until(10, 3) == 0


def test_pay_at_night():
    assert shifts.pay(3, 10) == 45


def test_pay_by_day():
    assert shifts.pay(3, 10, night=False) == 30


def test_longest_run_in_the_middle():
    assert shifts.longest_run([1, 3, 4, 5, 9]) == 3


def test_longest_run_of_two():
    assert shifts.longest_run([6, 7]) == 2


def test_longest_run_of_lone_days():
    assert shifts.longest_run([2, 4]) == 1


def test_longest_run_of_one_day():
    assert shifts.longest_run([5]) == 1


def test_changes_of_crews():
    assert shifts.changes(["red", "red", "blue", "red", "red", "red"]) == 2


def test_changes_none():
    assert shifts.changes(["red"]) == 0


def test_rest_ok_exact():
    assert shifts.rest_ok(20, 31, 11) is True


def test_rest_ok_more():
    assert shifts.rest_ok(20, 44, 11) is True


def test_rest_ok_too_short():
    assert shifts.rest_ok(20, 30, 11) is False


def test_too_long_one_shift():
    assert shifts.too_long([(0, 10), (20, 31)], 10) is True


def test_too_long_not_at_the_limit():
    assert shifts.too_long([(4, 14)], 10) is False


def test_too_long_without_shifts():
    assert shifts.too_long([], 10) is False


def test_worked_hours():
    assert shifts.worked([(2, 10), (20, 24)]) == 12


def test_worked_until_a_time():
    assert shifts.worked([(2, 10), (20, 31), (24, 30)], 30) == 14


def test_worked_nothing():
    assert shifts.worked([]) == 0


def test_swap_note_small_letter():
    assert shifts.swap_note("Ann", "red") == "a/red"


def test_swap_note_star_in_front():
    assert shifts.swap_note("bob", "*red*") == "b/red*"


def test_is_relief_star():
    assert shifts.is_relief("red* ") is True


def test_is_relief_not_in_front():
    assert shifts.is_relief("*red") is False


def test_is_relief_not_a_lone_star():
    assert shifts.is_relief("*") is False


def test_last_before_day():
    assert shifts.last_before([2, 5, 8], 8) == 5


def test_last_before_none():
    assert shifts.last_before([5, 8], 5) is None


def test_split_even_with_rest():
    assert shifts.split_even(17, 5) == 3


def test_split_even_for_one():
    assert shifts.split_even(8, 1) == 8


def test_split_even_for_nobody():
    assert shifts.split_even(8, 0) == 0
