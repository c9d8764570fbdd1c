from tariff.prices import charm_price
from tariff.prices import cheapest
from tariff.prices import currency_code
from tariff.prices import format_price
from tariff.prices import parse_price
from tariff.prices import price_span
from tariff.prices import round_up
from tariff.prices import unit_price
from tariff.prices import within_budget


def test_parse_price_with_cents():
    assert parse_price("12.50") == 1250


def test_parse_price_with_currency():
    assert parse_price(" EUR 3.07 ") == 307


def test_parse_price_whole():
    assert parse_price("4") == 400


def test_parse_price_without_a_number():
    assert parse_price("free") is None


def test_format_price_pads_cents():
    assert format_price(1205) == "12.05"


def test_format_price_two_digits():
    assert format_price(1210) == "12.10"
    assert format_price(99) == "0.99"


def test_unit_price_rounds_down():
    assert unit_price(1000, 3) == 333


def test_unit_price_of_one():
    assert unit_price(250, 1) == 250


def test_unit_price_of_none():
    assert unit_price(250, 0) == 0


def test_cheapest_by_price():
    assert cheapest({"tea": 300, "salt": 90, "rice": 200}) == "salt"


def test_cheapest_of_nothing():
    assert cheapest({}) is None


def test_price_span_of_several():
    assert price_span([300, 90, 200]) == 210


def test_price_span_of_nothing():
    assert price_span([]) == 0


def test_round_up_to_the_step():
    assert round_up(123, 50) == 150


def test_round_up_exact():
    assert round_up(150, 50) == 150


def test_charm_price_below_the_next_unit():
    assert charm_price(1240) == 1299


def test_charm_price_of_a_full_unit():
    assert charm_price(1200) == 1299


def test_within_budget_stops():
    assert within_budget([100, 200, 300], 350) == 2


def test_within_budget_exact():
    assert within_budget([100, 200], 300) == 2


def test_within_budget_does_not_skip():
    assert within_budget([100, 900, 100], 300) == 1


def test_within_budget_of_nothing():
    assert within_budget([], 100) == 0


def test_currency_code_in_capitals():
    assert currency_code("eur 12.50") == "EUR"


def test_currency_code_missing():
    assert currency_code("12.50") == ""
