from sensors.windows import chunk_totals
from sensors.windows import contains
from sensors.windows import last_values
from sensors.windows import moving_max
from sensors.windows import overlap
from sensors.windows import quiet_windows
from sensors.windows import rest_length
from sensors.windows import run_count
from sensors.windows import sliding
from sensors.windows import smooth
from sensors.windows import take_until
from sensors.windows import trim_zeros
from sensors.windows import window_count


def test_sliding_all_windows():
    assert sliding([1, 2, 3], 2) == [[1, 2], [2, 3]]


def test_sliding_of_size_one():
    assert sliding([1, 2], 1) == [[1], [2]]


def test_sliding_too_large():
    assert sliding([1, 2], 3) == []


def test_sliding_of_a_wrong_size():
    assert sliding([1, 2], 0) == []


def test_window_count_with_steps():
    assert window_count(10, 4, 2) == 4
    assert window_count(10, 4, 4) == 2


def test_window_count_exact():
    assert window_count(4, 4, 2) == 1


def test_window_count_too_large():
    assert window_count(3, 4, 2) == 0
    assert window_count(3, 9, 2) == 0


def test_moving_max_of_windows():
    assert moving_max([1, 5, 2, 3], 2) == [5, 5, 3]


def test_moving_max_of_nothing():
    assert moving_max([], 2) == []


def test_chunk_totals_adds_up():
    assert chunk_totals([1, 2, 3, 4], 2) == [3, 7]


def test_chunk_totals_leaves_the_rest_out():
    assert chunk_totals([1, 2, 3, 4, 5], 2) == [3, 7]


def test_rest_length_after_chunks():
    assert rest_length(11, 4) == 3


def test_rest_length_without_chunks():
    assert rest_length(11, 0) == 11


def test_last_values_some():
    assert last_values([1, 2, 3], 2) == [2, 3]


def test_last_values_too_many():
    assert last_values([1, 2, 3], 5) == [1, 2, 3]


def test_trim_zeros_at_both_ends():
    assert trim_zeros([0, 0, 3, 4, 0]) == [3, 4]


def test_trim_zeros_at_the_end():
    assert trim_zeros([3, 4, 0, 0]) == [3, 4]


def test_trim_zeros_keeps_inner():
    assert trim_zeros([3, 0, 4]) == [3, 0, 4]


def test_trim_zeros_only():
    assert trim_zeros([0, 0, 0]) == []


def test_take_until_the_stop():
    assert take_until([1, 2, 9, 3, 9], 9) == [1, 2]


def test_take_until_without_stop():
    assert take_until([1, 2], 9) == [1, 2]


def test_quiet_windows_at_the_limit():
    assert quiet_windows([1, 3, 9], 2, 2) == 1


def test_quiet_windows_after_a_loud_one():
    assert quiet_windows([1, 9, 8, 9], 2, 1) == 2


def test_quiet_windows_none():
    assert quiet_windows([1, 9], 2, 3) == 0


def test_overlap_of_ranges():
    assert overlap((1, 6), (4, 9)) == 2
    assert overlap((4, 9), (1, 6)) == 2


def test_overlap_within():
    assert overlap((1, 9), (3, 5)) == 2


def test_overlap_none():
    assert overlap((1, 3), (5, 9)) == 0


def test_contains_itself():
    assert contains((1, 9), (1, 9))


def test_contains_not_before():
    assert contains((1, 9), (0, 5)) is False


def test_contains_not_after():
    assert not contains((1, 9), (3, 10))


def test_contains_within():
    assert contains((1, 9), (3, 8))


def test_smooth_averages():
    assert smooth([4, 8, 3]) == [4, 6, 5]


def test_smooth_of_nothing():
    assert smooth([]) == []


def test_run_count_of_equal_readings():
    assert run_count([3, 3, 4, 4, 3]) == 3


def test_run_count_one():
    assert run_count([3, 3]) == 1


def test_run_count_of_nothing():
    assert run_count([]) == 0
