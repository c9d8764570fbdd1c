from queuebox.retry import attempts_left
from queuebox.retry import backoff
from queuebox.retry import clean_error
from queuebox.retry import deadline_passed
from queuebox.retry import first_success
from queuebox.retry import is_permanent
from queuebox.retry import last_error
from queuebox.retry import run_attempts
from queuebox.retry import should_retry
from queuebox.retry import spread
from queuebox.retry import total_wait


def test_backoff_starts_with_the_base():
    assert backoff(1, base=3) == 3


def test_backoff_doubles():
    assert backoff(4) == 16


def test_backoff_is_capped():
    assert backoff(9) == 60


def test_is_permanent_in_any_case():
    assert is_permanent("Denied: no access")


def test_is_permanent_looks_at_the_kind_only():
    assert not is_permanent("timeout:denied")


def test_is_permanent_not_others():
    assert not is_permanent("timeout")


def test_should_retry_below_the_limit():
    assert should_retry(2, 3, "timeout") is True


def test_should_retry_not_at_the_limit():
    assert should_retry(3, 3, "timeout") is False


def test_should_retry_not_permanent():
    assert should_retry(1, 3, "missing: file") is False


def test_attempts_left_counts():
    assert attempts_left(1, 5) == 4


def test_attempts_left_never_negative():
    assert attempts_left(7, 5) == 0


def test_total_wait_adds_up():
    assert total_wait(3) == 14


def test_total_wait_of_none():
    assert total_wait(0) == 0


def test_run_attempts_until_success():
    assert run_attempts([False, True, False], 5) == 2


def test_run_attempts_until_the_limit():
    assert run_attempts([False, False, False], 2) == 2


def test_run_attempts_all_fail():
    assert run_attempts([False, False], 5) == 2


def test_run_attempts_without_any_allowed():
    assert run_attempts([True], 0) == 0


def test_first_success_is_counted_from_one():
    assert first_success(["ok", "bad"]) == 1


def test_first_success_after_failures():
    assert first_success(["bad", "bad", "ok", "ok"]) == 3


def test_first_success_none():
    assert first_success(["bad"]) is None


def test_spread_over_the_period():
    assert [spread(slot, 4, 60) for slot in range(4)] == [0, 15, 30, 45]


def test_spread_starts_again():
    assert spread(5, 4, 60) == 15


def test_deadline_passed_after_the_limit():
    assert deadline_passed(100, 20, 121)


def test_deadline_passed_not_at_the_limit():
    assert not deadline_passed(100, 20, 120)
    assert not deadline_passed(100, 20, 105)


def test_deadline_passed_without_limit():
    assert deadline_passed(100, None, 9999) is False


def test_last_error_of_several():
    assert last_error(["ERROR: one", "ERROR: two", "fine"]) == "two"


def test_last_error_none():
    assert last_error(["fine", "no ERROR"]) == ""


def test_last_error_keeps_its_end():
    assert last_error(["ERROR: bad ERROR"]) == "bad ERROR"


def test_clean_error_drops_dots_at_the_end():
    assert clean_error(" .no file. ") == ".no file"


def test_clean_error_empty():
    assert clean_error(" . ") == "?"
