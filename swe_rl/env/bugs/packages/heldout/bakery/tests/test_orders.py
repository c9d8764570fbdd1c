from bakery.orders import can_collect
from bakery.orders import clean_name
from bakery.orders import dozen_price
from bakery.orders import is_gift
from bakery.orders import line_count
from bakery.orders import needs_deposit
from bakery.orders import order_code
from bakery.orders import queue_place
from bakery.orders import safe_to_eat
from bakery.orders import total_loaves


def test_order_code_in_capitals():
    assert order_code("Ada miller", 42) == "MILLER-42"


def test_order_code_keeps_two_digits():
    assert order_code("Bo", 1234) == "BO-34"


def test_is_gift_in_any_case():
    assert is_gift("Gift for Ann")


def test_is_gift_only_at_the_start():
    assert not is_gift("no gift")


def test_is_gift_without_a_note():
    assert is_gift(None) is False


def test_can_collect_from_seven():
    assert can_collect(7, True)
    assert not can_collect(6, True)


def test_can_collect_until_six_in_the_evening():
    assert can_collect(17, True)
    assert not can_collect(18, True)


def test_can_collect_not_unpaid():
    assert can_collect(12, False) is False


def test_dozen_price_below_thirteen():
    assert dozen_price(12, 40) == 480


def test_dozen_price_with_free_buns():
    assert dozen_price(27, 40) == 1000


def test_line_count_in_front():
    assert line_count("3 rye") == 3


def test_line_count_without_a_number():
    assert line_count("dark rye") == 1


def test_line_count_of_one_word():
    assert line_count("7") == 1
    assert line_count("") == 1


def test_line_count_of_three_words():
    assert line_count("12 small buns") == 1


def test_total_loaves_adds_up():
    assert total_loaves(["3 rye", "bun", "2 spelt"]) == 6


def test_total_loaves_skips_remarks():
    assert total_loaves(["# soon", "4 rye"]) == 4


def test_total_loaves_counts_a_late_hash():
    assert total_loaves(["2 rye#"]) == 2


def test_total_loaves_of_nothing():
    assert total_loaves([]) == 0


def test_safe_to_eat_without_allergens():
    assert safe_to_eat(["rye", "salt"], ["nuts", "milk"])


def test_safe_to_eat_not_with_one_allergen():
    assert not safe_to_eat(["rye", "nuts"], ["nuts", "milk"])


def test_safe_to_eat_of_nothing():
    assert safe_to_eat([], ["nuts"])


def test_clean_name_drops_bullets():
    assert clean_name("* rye -") == "rye -"


def test_clean_name_drops_final_dots():
    assert clean_name(".bun..") == ".bun"


def test_clean_name_drops_the_word_bread():
    assert clean_name("- corn bread.") == "corn"


def test_clean_name_keeps_bread_in_front():
    assert clean_name("bread pudding") == "bread pudding"


def test_queue_place_in_the_queue():
    assert queue_place(["ann", "bob", "cy"], "bob") == 2
    assert queue_place(["ann", "bob", "cy"], "ann") == 1


def test_queue_place_of_a_newcomer():
    assert queue_place(["ann", "bob"], "dan") == 3


def test_queue_place_without_a_queue():
    assert queue_place([], "ann") == 1


def test_needs_deposit_for_large_orders():
    assert needs_deposit(5001, "ann") is True
    assert needs_deposit(5000, "ann") is False


def test_needs_deposit_of_strangers():
    assert needs_deposit(100, None) is True
