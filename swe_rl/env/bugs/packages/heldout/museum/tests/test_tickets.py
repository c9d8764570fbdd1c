from museum.tickets import any_free
from museum.tickets import family_price
from museum.tickets import group_price
from museum.tickets import is_genuine
from museum.tickets import is_open
from museum.tickets import is_reduced
from museum.tickets import member_name
from museum.tickets import price_for
from museum.tickets import ticket_code
from museum.tickets import voucher_used


def test_price_for_small_children():
    assert price_for(5) == 0
    assert price_for(6) == 400


def test_price_for_the_young():
    assert price_for(17) == 400
    assert price_for(18) == 900


def test_is_reduced_for_the_old():
    assert is_reduced(65, "baker")
    assert not is_reduced(64, "baker")


def test_is_reduced_for_some_jobs():
    assert is_reduced(30, "teacher of art")


def test_is_reduced_only_at_the_start():
    assert not is_reduced(30, "former student")


def test_group_price_below_fifteen():
    assert group_price(14, 900) == 12600


def test_group_price_from_fifteen():
    assert group_price(15, 900) == 10800


def test_group_price_rounds_in_our_favour():
    assert group_price(16, 901) == 11533


def test_ticket_code_in_capitals():
    assert ticket_code("fri", 7) == "FRI7"


def test_ticket_code_keeps_three_digits():
    assert ticket_code("SAT", 12345) == "SAT345"


def test_is_genuine_with_the_right_digit():
    assert is_genuine([4, 5, 6, 1])


def test_is_genuine_not_with_a_wrong_digit():
    assert not is_genuine([4, 5, 6, 4])


def test_is_genuine_needs_four_digits():
    assert not is_genuine([4, 5, 2])


def test_is_open_from_ten():
    assert is_open("Friday", 10) is True
    assert is_open("Friday", 9) is False


def test_is_open_until_six():
    assert is_open("Friday", 17) is True
    assert is_open("Friday", 18) is False


def test_is_open_not_on_mondays():
    assert is_open("Monday", 12) is False


def test_family_price_first_child_free():
    assert family_price(2, 3) == 2600
    assert family_price(1, 1) == 900


def test_family_price_without_children():
    assert family_price(2, 0) == 1800


def test_voucher_used_for_the_price():
    assert voucher_used(2000, 900) == 900


def test_voucher_used_up():
    assert voucher_used(500, 900) == 500


def test_voucher_used_without_one():
    assert voucher_used(None, 900) == 0


def test_member_name_before_the_star():
    assert member_name("Ann *") == "Ann"


def test_member_name_keeps_the_front():
    assert member_name(" Bob**") == " Bob"


def test_member_name_of_others():
    assert member_name("*Ann") is None


def test_any_free_with_a_child():
    assert any_free([40, 3])


def test_any_free_not_from_six():
    assert not any_free([40, 6])


def test_any_free_of_nobody():
    assert not any_free([])
