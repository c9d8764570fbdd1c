from routes.trips import arrival
from routes.trips import clock
from routes.trips import fastest
from routes.trips import fuel_needed
from routes.trips import is_night
from routes.trips import parse_clock
from routes.trips import pauses
from routes.trips import refuels
from routes.trips import travel_minutes


def test_travel_minutes_at_speed():
    assert travel_minutes(100, 80) == 75


def test_travel_minutes_at_low_speed():
    assert travel_minutes(2, 1) == 120


def test_travel_minutes_standing():
    assert travel_minutes(100, 0) == 0


def test_pauses_after_two_hours():
    assert pauses(121) == 1
    assert pauses(241) == 2


def test_pauses_not_at_the_end():
    assert pauses(120) == 0
    assert pauses(240) == 1


def test_pauses_of_no_trip():
    assert pauses(0) == 0
    assert pauses(-200) == 0


def test_arrival_without_pause():
    assert arrival(600, 90) == 690


def test_arrival_with_pause():
    assert arrival(600, 130) == 745


def test_arrival_next_day():
    assert arrival(1400, 60) == 20


def test_clock_pads_minutes():
    assert clock(545) == "9:05"


def test_clock_two_digits():
    assert clock(550) == "9:10"


def test_parse_clock_reads():
    assert parse_clock("9:05") == 545


def test_parse_clock_without_mark():
    assert parse_clock("905") is None


def test_parse_clock_without_minutes():
    assert parse_clock("9:") is None


def test_fuel_needed_with_reserve():
    assert fuel_needed(200, 7) == 19


def test_fuel_needed_rounds_up():
    assert fuel_needed(101, 6, reserve=0) == 7


def test_refuels_on_the_way():
    assert refuels([300, 200, 100, 250], 400) == 2


def test_refuels_not_when_the_tank_is_enough():
    assert refuels([300, 100], 400) == 0


def test_refuels_a_full_tank_for_one_leg():
    assert refuels([100, 400], 400) == 1


def test_refuels_ends_at_a_leg_that_is_too_long():
    assert refuels([300, 500, 300], 400) == 0


def test_is_night_late():
    assert is_night(1320) is True
    assert is_night(1400) is True


def test_is_night_early():
    assert is_night(359) is True


def test_is_night_not_by_day():
    assert is_night(360) is False
    assert is_night(1319) is False


def test_fastest_trip():
    assert fastest({"bus": 50, "car": 30, "train": 40}) == "car"


def test_fastest_of_none():
    assert fastest({}) is None
