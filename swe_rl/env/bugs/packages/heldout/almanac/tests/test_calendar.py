from almanac import calendar


def test_is_leap_fourth_year():
    assert calendar.is_leap(2024) is True


def test_is_leap_not_others():
    assert calendar.is_leap(2023) is False


def test_is_leap_not_century():
    assert calendar.is_leap(1900) is False


def test_is_leap_fourth_century():
    assert calendar.is_leap(2000) is True


def test_month_days_january():
    assert calendar.month_days(1, False) == 31


def test_month_days_february():
    assert calendar.month_days(2, False) == 28


def test_month_days_leap_february():
    assert calendar.month_days(2, True) == 29


def test_month_days_leap_april():
    assert calendar.month_days(4, True) == 30


def test_day_of_year_first():
    assert calendar.day_of_year(1, 1) == 1


def test_day_of_year_in_march():
    assert calendar.day_of_year(3, 2) == 61


def test_weekday_of_same_week():
    assert calendar.weekday(2, 1) == 3


def test_weekday_of_later_week():
    assert calendar.weekday(16, 3) == 5


def test_eve_of_friday():
    assert calendar.eve(4) == 3


def test_eve_of_monday():
    assert calendar.eve(0) == 6


def test_is_weekend_saturday():
    assert calendar.is_weekend(5) is True


def test_is_weekend_sunday():
    assert calendar.is_weekend(6) is True


def test_is_weekend_not_friday():
    assert calendar.is_weekend(4) is False


def test_week_of_first_days():
    assert calendar.week_of(6) == 1


def test_week_of_later_day():
    assert calendar.week_of(23) == 4


def test_short_name_first():
    assert calendar.short_name(0) == "MON"


def test_short_name_last():
    assert calendar.short_name(4) == "FRI"


def test_short_name_behind_friday():
    assert calendar.short_name(5) == ""


def test_short_name_negative():
    assert calendar.short_name(-1) == ""


def test_weekday_number_any_case():
    assert calendar.weekday_number("Tuesday") == 1


def test_weekday_number_unknown():
    assert calendar.weekday_number("noday") is None


def test_ordinal_first():
    assert calendar.ordinal(1) == "1st"


def test_ordinal_teens():
    assert calendar.ordinal(11) == "11th"
    assert calendar.ordinal(13) == "13th"


def test_ordinal_later():
    assert calendar.ordinal(22) == "22nd"
    assert calendar.ordinal(30) == "30th"


def test_ordinal_tenth():
    assert calendar.ordinal(10) == "10th"


def test_next_free_at_once():
    assert calendar.next_free(3, {4}) == 3


def test_next_free_after_two():
    assert calendar.next_free(3, {3, 4, 6}) == 5


def test_count_weekends_both_days():
    assert calendar.count_weekends([5, 0, 6]) == 2


def test_count_weekends_none():
    assert calendar.count_weekends([0, 1, 4]) == 0
