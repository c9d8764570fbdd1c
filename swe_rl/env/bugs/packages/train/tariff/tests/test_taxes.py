from tariff.taxes import add_tax
from tariff.taxes import duty
from tariff.taxes import highest_rate
from tariff.taxes import included_tax
from tariff.taxes import is_exempt
from tariff.taxes import quarter
from tariff.taxes import tax_by_rate
from tariff.taxes import tax_rate
from tariff.taxes import valid_tax_number


def test_tax_rate_ignores_case():
    assert tax_rate("Food") == 7


def test_tax_rate_of_free_goods():
    assert tax_rate("stamp") == 0


def test_tax_rate_of_unknown_goods():
    assert tax_rate("lamp") == 19


def test_add_tax_on_top():
    assert add_tax(1000, 19) == 1190


def test_add_tax_rounds_half_up():
    assert add_tax(50, 7) == 54
    assert add_tax(10, 4) == 10


def test_included_tax_of_a_price():
    assert included_tax(1190, 19) == 190


def test_included_tax_without_rate():
    assert included_tax(500, 0) == 0


def test_is_exempt_for_free_goods():
    assert is_exempt("school", "DE", "DE")


def test_is_exempt_abroad():
    assert is_exempt("tool", "FR", "DE")


def test_is_exempt_not_at_home():
    assert not is_exempt("tool", "DE", "DE")


def test_tax_by_rate_adds_up():
    assert tax_by_rate([(100, 7), (50, 19), (30, 7)]) == {7: 130, 19: 50}


def test_tax_by_rate_leaves_zero_out():
    assert tax_by_rate([(100, 0), (50, 19)]) == {19: 50}


def test_tax_by_rate_of_nothing():
    assert tax_by_rate([]) == {}


def test_valid_tax_number_accepts():
    assert valid_tax_number("DE123456789")


def test_valid_tax_number_needs_the_country():
    assert not valid_tax_number("FR123456789")
    assert not valid_tax_number("123456789DE")


def test_valid_tax_number_needs_nine_digits():
    assert not valid_tax_number("DE12345678")
    assert not valid_tax_number("DE12345678x")


def test_valid_tax_number_missing():
    assert valid_tax_number(None) is False


def test_duty_up_to_the_limit():
    assert duty(5000, 5000) == 0
    assert duty(100, 5000) == 0


def test_duty_at_least_one_unit():
    assert duty(5001, 5000) == 100


def test_duty_of_a_tenth():
    assert duty(9000, 5000) == 400


def test_highest_rate_of_several():
    assert highest_rate(["food", "tool", "stamp"]) == 19


def test_highest_rate_of_none():
    assert highest_rate([]) == 0


def test_quarter_starts():
    assert [quarter(month) for month in (1, 4, 7, 10)] == [1, 2, 3, 4]


def test_quarter_ends():
    assert [quarter(month) for month in (3, 6, 9, 12)] == [1, 2, 3, 4]
