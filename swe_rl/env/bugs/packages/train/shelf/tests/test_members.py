from shelf.members import Member
from shelf.members import anyone_over_limit
from shelf.members import can_borrow
from shelf.members import deactivate
from shelf.members import find_member
from shelf.members import free_slots
from shelf.members import loan_limit
from shelf.members import next_card_number
from shelf.members import short_card
from shelf.members import valid_card


def test_loan_limit_of_a_child():
    assert loan_limit(Member("Ann", "M-0001X", age=13)) == 3


def test_loan_limit_from_fourteen():
    assert loan_limit(Member("Ann", "M-0001X", age=14)) == 6


def test_can_borrow_with_room():
    assert can_borrow(Member("Ann", "M-0001X", loans=["1"] * 5), 0) is True


def test_can_borrow_not_at_the_limit():
    assert can_borrow(Member("Ann", "M-0001X", loans=["1"] * 6), 0) is False


def test_can_borrow_not_with_debts():
    assert can_borrow(Member("Ann", "M-0001X"), 1) is False


def test_can_borrow_not_inactive():
    assert can_borrow(Member("Ann", "M-0001X", active=False), 0) is False


def test_free_slots_counts_the_rest():
    assert free_slots(Member("Ann", "M-0001X", loans=["1", "2"])) == 4


def test_free_slots_never_negative():
    assert free_slots(Member("Tim", "M-0002X", age=9, loans=["1"] * 5)) == 0


def test_valid_card_accepts():
    assert valid_card("M-1234X")


def test_valid_card_needs_prefix():
    assert not valid_card("N-1234X")
    assert not valid_card("N-123M-")


def test_valid_card_needs_suffix():
    assert not valid_card("M-12345")
    assert not valid_card("M-X1234")


def test_valid_card_needs_length():
    assert not valid_card("M-12X")


def test_short_card_drops_zeros():
    assert short_card("M-0012") == "12"


def test_short_card_keeps_last_zeros():
    assert short_card("M-1200") == "1200"


def test_next_card_number_of_the_first():
    assert next_card_number([]) == 1


def test_next_card_number_after_the_largest():
    assert next_card_number([4, 9, 2]) == 10


def test_find_member_ignores_case():
    ann = Member("Ann", "M-0001X")
    assert find_member([ann], "aNN") is ann


def test_find_member_skips_inactive():
    gone = Member("Ann", "M-0001X", active=False)
    ann = Member("Ann", "M-0002X")
    assert find_member([gone, ann], "Ann") is ann


def test_find_member_skips_other_names():
    ann = Member("Ann", "M-0001X")
    assert find_member([Member("Bob", "M-0003X"), ann], "Ann") is ann


def test_find_member_absent():
    assert find_member([Member("Ann", "M-0001X")], "Bob") is None


def test_deactivate_without_loans():
    member = Member("Ann", "M-0001X")
    assert deactivate(member) is True
    assert member.active is False


def test_deactivate_refused_with_loans():
    member = Member("Ann", "M-0001X", loans=["1"])
    assert deactivate(member) is False
    assert member.active is True


def test_anyone_over_limit_one_is_enough():
    many = Member("Ann", "M-0001X", loans=["1"] * 7)
    assert anyone_over_limit([Member("Bob", "M-0002X"), many])


def test_anyone_over_limit_not_at_the_limit():
    full = Member("Ann", "M-0001X", loans=["1"] * 6)
    assert not anyone_over_limit([full])


def test_anyone_over_limit_not_below():
    assert not anyone_over_limit([Member("Ann", "M-0001X")])


def test_anyone_over_limit_of_nobody():
    assert anyone_over_limit([]) is False
