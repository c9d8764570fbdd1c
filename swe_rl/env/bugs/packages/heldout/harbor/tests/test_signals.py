from harbor.signals import any_distress
from harbor.signals import call_sign
from harbor.signals import flash_count
from harbor.signals import is_channel
from harbor.signals import is_urgent
from harbor.signals import light_is_on
from harbor.signals import may_enter
from harbor.signals import storm_balls
from harbor.signals import tidal_range
from harbor.signals import tide_trend


def test_is_urgent_in_any_case():
    assert is_urgent("MayDay") is True


def test_is_urgent_with_marks_behind():
    assert is_urgent("securite!!") is True


def test_is_urgent_not_with_marks_in_front():
    assert is_urgent("!mayday") is False


def test_is_urgent_not_for_chatter():
    assert is_urgent("good morning") is False


def test_call_sign_in_capitals():
    assert call_sign("dl7x") == "DL7X"


def test_call_sign_drops_stars_in_front():
    assert call_sign("** DL7X*") == "DL7X*"


def test_call_sign_drops_dashes_behind():
    assert call_sign("-DL7X --") == "-DL7X"


def test_storm_balls_none_in_a_breeze():
    assert storm_balls(7) == 0
    assert storm_balls(0) == 0


def test_storm_balls_one_in_a_gale():
    assert storm_balls(8) == 1
    assert storm_balls(10) == 1


def test_storm_balls_two_in_a_storm():
    assert storm_balls(11) == 2


def test_light_is_on_from_twenty():
    assert light_is_on(20, False) is True
    assert light_is_on(22, False) is True


def test_light_is_on_until_six():
    assert light_is_on(5, False) is True


def test_light_is_on_not_by_day():
    assert light_is_on(6, False) is False
    assert light_is_on(19, False) is False


def test_light_is_on_in_fog():
    assert light_is_on(12, True) is True


def test_may_enter_on_green():
    assert may_enter(["green", "green"]) is True


def test_may_enter_not_on_one_red():
    assert may_enter(["green", "red"]) is False


def test_may_enter_not_on_red_only():
    assert may_enter(["red", "red"]) is False


def test_may_enter_not_without_lights():
    assert may_enter([]) is False


def test_any_distress_in_one_flag():
    assert any_distress(["ab", "nc1", "xy"]) is True


def test_any_distress_not_elsewhere_in_a_flag():
    assert any_distress(["ab", "1nc"]) is False


def test_any_distress_without_flags():
    assert any_distress([]) is False


def test_tidal_range_of_levels():
    assert tidal_range([12, 35, 8, 20]) == 27


def test_tidal_range_below_zero():
    assert tidal_range([-4, 6]) == 10


def test_tidal_range_with_a_missing_level():
    assert tidal_range([12, None, 8]) == 0


def test_tidal_range_without_levels():
    assert tidal_range([]) == 0


def test_tide_trend_slack():
    assert tide_trend([12, 30, 12]) == "slack"


def test_tide_trend_ebb():
    assert tide_trend([12, 30, 11]) == "ebb"


def test_tide_trend_flood():
    assert tide_trend([12, 5, 14]) == "flood"


def test_flash_count_all_flashes():
    assert flash_count("***") == 3


def test_flash_count_ends_at_a_pause():
    assert flash_count("**/***") == 2


def test_flash_count_skips_gaps():
    assert flash_count("*.*.*/") == 3


def test_flash_count_of_darkness():
    assert flash_count("") == 0
    assert flash_count("...") == 0


def test_is_channel_usual():
    assert is_channel("ch16") is True


def test_is_channel_lowest():
    assert is_channel("ch1") is True
    assert is_channel("ch0") is False


def test_is_channel_highest():
    assert is_channel("ch88") is True
    assert is_channel("ch89") is False


def test_is_channel_needs_its_letters():
    assert is_channel("xx16") is False
    assert is_channel("16") is False


def test_is_channel_needs_digits():
    assert is_channel("chat") is False
    assert is_channel("ch") is False


def test_is_channel_not_for_none():
    assert is_channel(None) is False
