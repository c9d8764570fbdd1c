from almanac import clock


def test_minutes_of_morning():
    assert clock.minutes_of(7, 30) == 450


def test_minutes_of_midnight():
    assert clock.minutes_of(0, 5) == 5


def test_clock_text_two_digits():
    assert clock.clock_text(425) == "7:05"


def test_clock_text_next_day():
    assert clock.clock_text(1440 + 90) == "1:30"


def test_is_valid_first_minute():
    assert clock.is_valid(0, 0) is True


def test_is_valid_last_minute():
    assert clock.is_valid(23, 59) is True


def test_is_valid_wrong_hour():
    assert clock.is_valid(24, 0) is False
    assert clock.is_valid(-1, 5) is False


def test_is_valid_wrong_minute():
    assert clock.is_valid(3, 60) is False


def test_parse_time_morning():
    assert clock.parse_time("9:30") == 570


def test_parse_time_without_minutes():
    assert clock.parse_time("9") is None


def test_parse_time_without_hour():
    assert clock.parse_time(":30") is None


def test_span_same_day():
    assert clock.span(100, 160) == 60


def test_span_over_midnight():
    assert clock.span(1400, 20) == 60


def test_span_of_nothing():
    assert clock.span(300, 300) == 0


def test_is_evening_any_case():
    assert clock.is_evening("8 PM ") is True


def test_is_evening_not_morning():
    assert clock.is_evening("8 am") is False


def test_is_evening_not_in_front():
    assert clock.is_evening("pm 8") is False


def test_quarter_first():
    assert clock.quarter(14) == 1


def test_quarter_second():
    assert clock.quarter(15) == 2


def test_quarter_never_fifth():
    assert clock.quarter(60) == 4


def test_short_without_zero():
    assert clock.short("07:30") == "7:30"


def test_short_keeps_the_end():
    assert clock.short("7:00") == "7:00"


def test_in_order_rising():
    assert clock.in_order([10, 30, 45]) is True


def test_in_order_equal_times():
    assert clock.in_order([10, 10]) is True


def test_in_order_not_if_one_falls():
    assert clock.in_order([10, 5, 30]) is False


def test_latest_of_three():
    assert clock.latest([30, 90, 60]) == 90


def test_latest_of_one():
    assert clock.latest([30]) == 30


def test_latest_of_none():
    assert clock.latest([]) is None


def test_overlap_of_spans():
    assert clock.overlap((10, 50), (30, 90)) == 20


def test_overlap_of_inner_span():
    assert clock.overlap((40, 45), (30, 90)) == 5


def test_overlap_none():
    assert clock.overlap((10, 20), (30, 90)) == 0
