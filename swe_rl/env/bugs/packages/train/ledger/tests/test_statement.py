from ledger.statement import duplicates
from ledger.statement import find_gap
from ledger.statement import first_overdraft
from ledger.statement import format_amount
from ledger.statement import is_transfer
from ledger.statement import lowest_balance
from ledger.statement import parse_amount
from ledger.statement import parse_row
from ledger.statement import payee
from ledger.statement import running
from ledger.statement import until_total


def test_parse_amount_positive():
    assert parse_amount("12.50") == 1250
    assert parse_amount("+3.07") == 307


def test_parse_amount_negative():
    assert parse_amount("12.50-") == -1250


def test_parse_amount_needs_two_decimals():
    assert parse_amount("12.5") is None
    assert parse_amount("12") is None


def test_parse_amount_needs_digits():
    assert parse_amount("ab.50") is None


def test_parse_amount_sign_on_the_wrong_side():
    assert parse_amount("-12.50") is None


def test_format_amount_positive():
    assert format_amount(1205) == "12.05"


def test_format_amount_negative():
    assert format_amount(-1205) == "12.05-"


def test_format_amount_zero():
    assert format_amount(0) == "0.00"


def test_parse_row_reads():
    assert parse_row("7; tea ;3.00-") == (7, "tea", -300)


def test_parse_row_comment():
    assert parse_row("#;a;b") is None


def test_parse_row_ends_with_a_mark():
    assert parse_row("7;tea;#") == (7, "tea", None)


def test_parse_row_broken():
    assert parse_row("7;tea") is None


def test_running_after_each_amount():
    assert running(10, [5, -20]) == [15, -5]


def test_running_of_nothing():
    assert running(10, []) == []


def test_lowest_balance_on_the_way():
    assert lowest_balance(10, [-20, 40]) == -10


def test_lowest_balance_at_the_start():
    assert lowest_balance(10, [20]) == 10


def test_first_overdraft_is_counted_from_one():
    assert first_overdraft(10, [-20, -5]) == 1
    assert first_overdraft(10, [5, -5, -11]) == 3


def test_first_overdraft_not_at_zero():
    assert first_overdraft(10, [-10]) == 0


def test_find_gap_missing_number():
    assert find_gap([3, 4, 6, 7]) == 5


def test_find_gap_none():
    assert find_gap([3, 4, 5]) is None


def test_is_transfer_by_beginning():
    assert is_transfer(" trf rent")


def test_is_transfer_by_slip():
    assert is_transfer("rent (12) ")


def test_is_transfer_not_others():
    assert not is_transfer("(12) rent trf")


def test_payee_in_capitals():
    assert payee("Ann Lee / rent") == "ANN LEE"


def test_payee_without_dots_at_the_end():
    assert payee(".com Inc. / rent") == ".COM INC"


def test_payee_before_the_first_slash():
    assert payee("a/b/c") == "A"


def test_duplicates_each_once():
    assert duplicates(["a", "b", "a", "a", "c"]) == ["a"]


def test_duplicates_none():
    assert duplicates(["a", "b"]) == []


def test_until_total_reaches():
    assert until_total([10, 20, 30, 40], 30) == 2


def test_until_total_not_reached():
    assert until_total([10, 20], 100) == 2


def test_until_total_just_missed():
    assert until_total([10, 20, 30, 40], 31) == 3


def test_until_total_of_nothing():
    assert until_total([], 5) == 0


def test_until_total_stops_for_good():
    assert until_total([50, -30, 40], 50) == 1
