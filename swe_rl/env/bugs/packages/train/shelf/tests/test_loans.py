from shelf.loans import LoanDesk
from shelf.loans import days_left
from shelf.loans import reminder_days
from shelf.loans import waiting_place


def test_lend_sets_the_due_day():
    desk = LoanDesk()
    assert desk.lend("A1", "Ann", 100) is True
    assert desk.due["A1"] == 121


def test_lend_refuses_a_book_that_is_out():
    desk = LoanDesk()
    desk.due["A1"] = 121
    assert desk.lend("A1", "Bob", 101) is False


def test_give_back_in_time():
    desk = LoanDesk()
    desk.due["A1"] = 121
    desk.holder["A1"] = "Ann"
    assert desk.give_back("A1", 110) == 0
    assert desk.due == {}


def test_give_back_late():
    desk = LoanDesk()
    desk.due["A1"] = 121
    desk.holder["A1"] = "Ann"
    assert desk.give_back("A1", 125) == 4


def test_give_back_of_an_unknown_book():
    assert LoanDesk().give_back("A1", 125) == 0


def test_renew_adds_a_period():
    desk = LoanDesk()
    desk.due["A1"] = 50
    assert desk.renew("A1") is True
    assert desk.due["A1"] == 71


def test_renew_twice_only():
    desk = LoanDesk()
    desk.due["A1"] = 50
    assert [desk.renew("A1") for _ in range(3)] == [True, True, False]


def test_renew_counts():
    desk = LoanDesk()
    desk.due["A1"] = 50
    desk.renew("A1")
    assert desk.renewals["A1"] == 1


def test_renew_of_an_unknown_book():
    assert LoanDesk().renew("A1") is False


def test_overdue_after_the_last_day():
    desk = LoanDesk()
    desk.due.update({"B": 10, "A": 11, "C": 12})
    assert desk.overdue(12) == ["A", "B"]


def test_overdue_not_on_the_last_day():
    desk = LoanDesk()
    desk.due["A"] = 10
    assert desk.overdue(10) == []


def test_held_by_one_person():
    desk = LoanDesk()
    desk.holder.update({"B": "Ann", "A": "Ann", "C": "Bob"})
    assert desk.held_by("Ann") == ["A", "B"]


def test_held_by_nobody():
    desk = LoanDesk()
    desk.holder["C"] = "Bob"
    assert desk.held_by("Ann") == []


def test_next_due_is_the_earliest():
    desk = LoanDesk()
    desk.due.update({"A": 30, "B": 20})
    assert desk.next_due() == 20


def test_next_due_of_nothing():
    assert LoanDesk().next_due() is None


def test_holder_label_of_a_lent_book():
    desk = LoanDesk()
    desk.holder["A"] = "Ann"
    assert desk.holder_label("A") == "ANN"


def test_holder_label_on_the_shelf():
    assert LoanDesk().holder_label("A") == "ON SHELF"


def test_has_any_one_is_enough():
    desk = LoanDesk()
    desk.due["A"] = 30
    assert desk.has_any(["B", "A"])


def test_has_any_none():
    desk = LoanDesk()
    desk.due["A"] = 30
    assert not desk.has_any(["B", "C"])
    assert not desk.has_any([])


def test_days_left_before():
    assert days_left(30, 25) == 5
    assert days_left(30, 29) == 1


def test_days_left_late():
    assert days_left(30, 31) is None
    assert days_left(30, 40) is None


def test_days_left_on_the_last_day():
    assert days_left(30, 30) == 0


def test_reminder_days_in_steps():
    assert reminder_days(30, 7, 3) == [30, 37, 44]


def test_reminder_days_none():
    assert reminder_days(30, 7, 0) == []


def test_waiting_place_from_one():
    assert waiting_place(["Ann", "Bob"], "Ann") == 1


def test_waiting_place_later():
    assert waiting_place(["Ann", "Bob", "Eve"], "Eve") == 3


def test_waiting_place_absent():
    assert waiting_place(["Ann"], "Bob") == 0
