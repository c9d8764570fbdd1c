from sensors.alarms import Alarm
from sensors.alarms import clamp
from sensors.alarms import crossings
from sensors.alarms import delayed
from sensors.alarms import is_stuck
from sensors.alarms import level
from sensors.alarms import outliers
from sensors.alarms import worst_level


def test_alarm_starts_off():
    assert Alarm(10, 20).active is False
    assert Alarm(10, 20).count == 0


def test_feed_goes_on_at_the_threshold():
    assert Alarm(10, 20).feed(20) is True


def test_feed_stays_off_below():
    assert Alarm(10, 20).feed(19) is False


def test_feed_stays_on_in_between():
    alarm = Alarm(10, 20)
    alarm.active = True
    assert alarm.feed(10) is True


def test_feed_goes_off():
    alarm = Alarm(10, 20)
    alarm.active = True
    assert alarm.feed(9) is False


def test_feed_counts_each_start_once():
    alarm = Alarm(10, 20)
    alarm.feed(25)
    alarm.feed(26)
    assert alarm.count == 1


def test_feed_all_until_on():
    assert Alarm(10, 20).feed_all([5, 25, 5, 6]) == 2


def test_feed_all_never_on():
    assert Alarm(10, 20).feed_all([5, 6, 7]) == 3


def test_margin_below():
    assert Alarm(10, 20).margin(15) == 5


def test_margin_above():
    assert Alarm(10, 20).margin(25) == 0


def test_margin_when_on():
    alarm = Alarm(10, 20)
    alarm.active = True
    assert alarm.margin(15) == 0


def test_widen_moves_both():
    alarm = Alarm(10, 20)
    assert alarm.widen(3) is True
    assert (alarm.low, alarm.high) == (7, 23)


def test_widen_not_by_zero():
    alarm = Alarm(10, 20)
    assert alarm.widen(0) is False


def test_level_counts_limits():
    assert level(25, [10, 20, 30]) == 2


def test_level_at_a_limit():
    assert level(20, [10, 20, 30]) == 2
    assert level(9, [10, 20, 30]) == 0


def test_level_stops_at_the_first_limit_above():
    assert level(15, [10, 20, 12]) == 1


def test_clamp_within():
    assert clamp(5, 1, 9) == 5


def test_clamp_low():
    assert clamp(0, 1, 9) == 1


def test_clamp_high():
    assert clamp(12, 1, 9) == 9


def test_is_stuck_at_the_end():
    assert is_stuck([1, 5, 5, 5], 3)
    assert is_stuck([5, 5], 2)


def test_is_stuck_not_when_one_differs():
    assert not is_stuck([5, 5, 4, 5], 3)
    assert not is_stuck([5, 4, 4], 3)


def test_is_stuck_not_with_too_few():
    assert is_stuck([5, 5], 3) is False


def test_crossings_from_below():
    assert crossings([1, 5, 2, 6], 5) == 2


def test_crossings_not_from_the_limit():
    assert crossings([5, 6, 5], 5) == 0


def test_crossings_not_when_staying_below():
    assert crossings([1, 2, 3], 5) == 0


def test_worst_level_fatal():
    assert worst_level(["ok", "Fatal", "warn"]) == "fatal"


def test_worst_level_warn():
    assert worst_level(["ok", "WARN"]) == "warn"
    assert worst_level(["ok", "error"]) == "warn"


def test_worst_level_ok():
    assert worst_level(["ok"]) == "ok"
    assert worst_level([]) == "ok"


def test_outliers_beyond_the_limit():
    assert outliers([10, 16, 4, 12], 10, 5) == [16, 4]


def test_outliers_not_at_the_limit():
    assert outliers([15, 5], 10, 5) == []


def test_delayed_at_least():
    assert delayed([5, 10], 20, 30)


def test_delayed_not_yet():
    assert not delayed([5, 10], 20, 29)


def test_delayed_without_start():
    assert delayed([], 20, 30) is False
