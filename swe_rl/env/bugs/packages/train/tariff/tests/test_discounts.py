from tariff.discounts import all_discounted
from tariff.discounts import best_of
from tariff.discounts import bulk_percent
from tariff.discounts import coupon_applies
from tariff.discounts import coupon_percent
from tariff.discounts import loyalty_bonus
from tariff.discounts import paid_items
from tariff.discounts import percent_off
from tariff.discounts import staff_price
from tariff.discounts import step_discount


def test_percent_off_takes_a_part():
    assert percent_off(1000, 15) == 850


def test_percent_off_rounds_the_discount_down():
    assert percent_off(999, 10) == 900


def test_bulk_percent_from_ten():
    assert bulk_percent(10) == 5
    assert bulk_percent(9) == 0


def test_bulk_percent_from_fifty():
    assert bulk_percent(50) == 12
    assert bulk_percent(49) == 5


def test_paid_items_one_free_for_each_group():
    assert paid_items(7, 3) == 5


def test_paid_items_below_a_group():
    assert paid_items(2, 3) == 2


def test_loyalty_bonus_for_years():
    assert loyalty_bonus(3, 0) == 6


def test_loyalty_bonus_is_limited():
    assert loyalty_bonus(9, 0) == 10


def test_loyalty_bonus_up_to_three_complaints():
    assert loyalty_bonus(2, 3) == 4
    assert loyalty_bonus(2, 4) == 0


def test_best_of_takes_the_lowest():
    assert best_of([900, 700, 800], 1000) == 700


def test_best_of_never_above_full():
    assert best_of([1200], 1000) == 1000


def test_best_of_skips_negative():
    assert best_of([-5, 700], 1000) == 700


def test_best_of_may_be_free():
    assert best_of([0, 700], 1000) == 0


def test_coupon_applies_from_the_total():
    assert coupon_applies("save10", 2000)


def test_coupon_applies_not_below_the_total():
    assert coupon_applies("SAVE10", 1999) is False


def test_coupon_applies_others_without_total():
    assert coupon_applies("GIFT5SAVE", 10)


def test_coupon_applies_not_when_too_short():
    assert not coupon_applies("ABC", 9000)


def test_coupon_percent_reads_the_number():
    assert coupon_percent("SAVE15") == 15


def test_coupon_percent_is_limited():
    assert coupon_percent("SAVE90") == 60


def test_coupon_percent_without_a_number():
    assert coupon_percent("SAVE") == 0


def test_staff_price_is_lower():
    assert staff_price(1000, "Clerk") == 750


def test_staff_price_of_other_roles():
    assert staff_price(1000, "guest") == 1000


def test_staff_price_without_a_role():
    assert staff_price(1000, None) == 1000


def test_all_discounted_accepts():
    assert all_discounted([(10, 9), (5, 1)])
    assert all_discounted([])


def test_all_discounted_needs_each():
    assert not all_discounted([(10, 9), (5, 6)])


def test_all_discounted_not_when_equal():
    assert not all_discounted([(10, 10)])


def test_step_discount_reaches_a_limit():
    assert step_discount(200, [(100, 5), (200, 20), (300, 40)]) == 20


def test_step_discount_below_all():
    assert step_discount(99, [(100, 5), (200, 20)]) == 0


def test_step_discount_stops_at_the_first_limit_above():
    assert step_discount(150, [(100, 5), (200, 20), (120, 8)]) == 5
