from sensors.series import differences
from sensors.series import fill_gaps
from sensors.series import has_jump
from sensors.series import is_rising
from sensors.series import longest_gap
from sensors.series import mean
from sensors.series import median
from sensors.series import peak_place
from sensors.series import present
from sensors.series import span
from sensors.series import trend


def test_present_drops_missing():
    assert present([1, None, 0, 3]) == [1, 0, 3]


def test_present_of_nothing():
    assert present([]) == []


def test_mean_rounds_down():
    assert mean([1, 2, 7]) == 3


def test_mean_without_readings():
    assert mean([]) is None


def test_span_of_readings():
    assert span([4, 9, 2]) == 7


def test_span_without_readings():
    assert span([]) == 0


def test_fill_gaps_repeats():
    assert fill_gaps([5, None, None, 7]) == [5, 5, 5, 7]


def test_fill_gaps_at_the_start():
    assert fill_gaps([None, 4], start=2) == [2, 4]


def test_longest_gap_in_a_row():
    assert longest_gap([None, 1, None, None, 2, None]) == 2


def test_longest_gap_none():
    assert longest_gap([1, 2]) == 0


def test_longest_gap_one():
    assert longest_gap([None, 1]) == 1


def test_differences_of_neighbours():
    assert differences([3, 5, 4]) == [2, -1]


def test_differences_of_one_reading():
    assert differences([3]) == []


def test_trend_up():
    assert trend([1, 9, 2]) == "up"


def test_trend_down():
    assert trend([3, 1, 2]) == "down"


def test_trend_flat():
    assert trend([3, 9, 3]) == "flat"


def test_trend_of_one_reading():
    assert trend([3]) == "flat"
    assert trend([]) == "flat"


def test_is_rising_each():
    assert is_rising([1, 2, 5])


def test_is_rising_not_when_equal():
    assert not is_rising([1, 2, 2])


def test_is_rising_not_when_one_falls():
    assert not is_rising([1, 2, 0])


def test_has_jump_of_the_size():
    assert has_jump([1, 2, 7], 5)
    assert has_jump([7, 2, 3], 5)


def test_has_jump_below_the_size():
    assert not has_jump([1, 2, 6], 5)


def test_peak_place_is_counted_from_one():
    assert peak_place([3, 9, 4, 9]) == 2


def test_peak_place_of_nothing():
    assert peak_place([]) == 0


def test_median_of_an_odd_number():
    assert median([9, 1, 5]) == 5


def test_median_takes_the_lower_one():
    assert median([9, 1, 5, 7]) == 5


def test_median_of_nothing():
    assert median([]) is None
