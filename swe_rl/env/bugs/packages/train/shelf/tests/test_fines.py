from shelf.fines import describe_balance
from shelf.fines import first_unpaid
from shelf.fines import weeks_begun
from shelf.fines import is_blocked
from shelf.fines import late_fee
from shelf.fines import parse_cents
from shelf.fines import pay
from shelf.fines import replacement_cost
from shelf.fines import rest_days
from shelf.fines import total_fees
from shelf.fines import waive


def test_late_fee_within_grace():
    assert late_fee(0) == 0
    assert late_fee(2) == 0


def test_late_fee_after_grace():
    assert late_fee(3) == 60
    assert late_fee(7) == 140


def test_late_fee_is_capped():
    assert late_fee(26) == 500
    assert late_fee(100) == 500


def test_total_fees_adds_up():
    assert total_fees([3, 4, 2]) == 140


def test_total_fees_of_nothing():
    assert total_fees([]) == 0


def test_weeks_begun_with_a_rest():
    assert weeks_begun(15) == 3
    assert weeks_begun(6) == 1


def test_weeks_begun_full():
    assert weeks_begun(14) == 2
    assert weeks_begun(0) == 0


def test_rest_days_after_weeks():
    assert rest_days(15) == 1


def test_rest_days_of_a_full_week():
    assert rest_days(14) == 0


def test_pay_a_part():
    assert pay(500, 200) == (300, 0)


def test_pay_too_much():
    assert pay(500, 700) == (0, 200)


def test_is_blocked_above_the_cap():
    assert is_blocked(501) is True


def test_is_blocked_not_at_the_cap():
    assert is_blocked(500) is False


def test_is_blocked_with_a_lost_book():
    assert is_blocked(0, lost=True) is True


def test_replacement_cost_of_a_new_book():
    assert replacement_cost(1000, 0) == 1000


def test_replacement_cost_falls():
    assert replacement_cost(1000, 3) == 700


def test_replacement_cost_has_a_floor():
    assert replacement_cost(1000, 9) == 200


def test_parse_cents_with_fraction():
    assert parse_cents("3.40") == 340


def test_parse_cents_whole():
    assert parse_cents("3") == 300


def test_parse_cents_with_sign():
    assert parse_cents("$12.05") == 1205


def test_parse_cents_without_a_number():
    assert parse_cents("free") is None
    assert parse_cents("x.40") is None


def test_first_unpaid_skips_settled():
    assert first_unpaid([("Ann", 0), ("Bob", 5), ("Eve", 7)]) == "Bob"


def test_first_unpaid_none():
    assert first_unpaid([("Ann", 0), ("Bob", -5)]) is None


def test_waive_drops_names():
    assert waive({"Ann": 3, "Bob": 4}, ["Ann"]) == {"Bob": 4}


def test_waive_nobody():
    assert waive({"Ann": 3}, []) == {"Ann": 3}


def test_describe_balance_unknown():
    assert describe_balance(None) == "unknown"


def test_describe_balance_settled():
    assert describe_balance(0) == "settled"


def test_describe_balance_owed():
    assert describe_balance(40) == "owes 40"
