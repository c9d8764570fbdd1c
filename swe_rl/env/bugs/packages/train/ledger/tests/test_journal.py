from ledger.journal import Journal
from ledger.journal import debit_count
from ledger.journal import is_balanced
from ledger.journal import reversed_lines
from ledger.journal import split_amount

LINES = [("cash", 50), ("sales", -50)]


def test_post_adds_an_entry():
    journal = Journal()
    assert journal.post(1, "tea", LINES) is True
    assert journal.entries == [(1, "tea", LINES)]


def test_post_not_on_a_closed_day():
    journal = Journal()
    journal.closed_day = 7
    assert journal.post(7, "tea", LINES) is False
    assert journal.post(6, "tea", LINES) is False


def test_post_not_unbalanced():
    journal = Journal()
    assert journal.post(1, "tea", [("cash", 50), ("sales", -40)]) is False
    assert journal.entries == []


def test_balance_adds_up():
    journal = Journal()
    journal.entries = [(1, "tea", LINES), (2, "salt", LINES)]
    assert journal.balance("cash") == 100
    assert journal.balance("sales") == -100


def test_balance_until_a_day():
    journal = Journal()
    journal.entries = [(day, "tea", LINES) for day in (1, 2, 3, 4)]
    assert journal.balance("cash", until=3) == 150


def test_balance_until_skips_only_later_days():
    journal = Journal()
    journal.entries = [(day, "tea", LINES) for day in (3, 1, 2)]
    assert journal.balance("cash", until=2) == 100


def test_balance_unknown():
    assert Journal().balance("cash") == 0


def test_search_in_any_case():
    journal = Journal()
    journal.entries = [(1, "Green TEA", LINES), (2, "salt", LINES)]
    assert journal.search("Tea") == ["Green TEA"]


def test_search_without_hit():
    journal = Journal()
    journal.entries = [(2, "salt", LINES)]
    assert journal.search("tea") == []


def test_last_day_is_the_latest():
    journal = Journal()
    journal.entries = [(1, "a", LINES), (9, "b", LINES), (4, "c", LINES)]
    assert journal.last_day() == 9


def test_last_day_without_entries():
    assert Journal().last_day() is None


def test_close_until_a_later_day():
    journal = Journal()
    assert journal.close_until(5) is True
    assert journal.closed_day == 5


def test_close_until_the_same_day():
    journal = Journal()
    journal.closed_day = 5
    assert journal.close_until(5) is True


def test_close_until_not_earlier():
    journal = Journal()
    journal.closed_day = 5
    assert journal.close_until(4) is False
    assert journal.closed_day == 5


def test_undo_last_removes_one():
    journal = Journal()
    journal.entries = [(1, "tea", LINES), (2, "salt", LINES)]
    assert journal.undo_last() is True
    assert journal.entries == [(1, "tea", LINES)]


def test_undo_last_not_on_a_closed_day():
    journal = Journal()
    journal.entries = [(9, "tea", LINES), (2, "salt", LINES)]
    journal.closed_day = 2
    assert journal.undo_last() is False


def test_undo_last_without_entries():
    assert Journal().undo_last() is False


def test_first_text_of_the_oldest():
    journal = Journal()
    journal.entries = [(1, "tea", LINES), (2, "salt", LINES)]
    assert journal.first_text() == "tea"


def test_first_text_without_entries():
    assert Journal().first_text() == ""


def test_is_balanced_cancels_out():
    assert is_balanced([("a", 30), ("b", 20), ("c", -50)])
    assert is_balanced([("a", 30), ("b", -30)])


def test_is_balanced_not_with_a_rest():
    assert not is_balanced([("a", 30), ("b", -20)])


def test_is_balanced_needs_two_lines():
    assert is_balanced([("a", 0)]) is False


def test_reversed_lines_turn_signs():
    assert reversed_lines(LINES) == [("cash", -50), ("sales", 50)]


def test_reversed_lines_of_nothing():
    assert reversed_lines([]) == []


def test_debit_count_of_positive_amounts():
    assert debit_count([("a", 30), ("b", -50), ("c", 20)]) == 2


def test_debit_count_leaves_zero_out():
    assert debit_count([("a", 0), ("b", 10)]) == 1


def test_debit_count_of_nothing():
    assert debit_count([]) == 0


def test_split_amount_equal():
    assert split_amount(90, 3) == [30, 30, 30]


def test_split_amount_with_a_rest():
    assert split_amount(101, 3) == [35, 33, 33]
