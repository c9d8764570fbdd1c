from playlist.track import Track


def test_length_text_minutes():
    assert Track("Sun", "Ann", 200).length_text() == "3:20"


def test_length_text_two_digits():
    assert Track("Sun", "Ann", 65).length_text() == "1:05"


def test_rest_seconds_of_track():
    assert Track("Sun", "Ann", 200).rest_seconds() == 20


def test_rest_seconds_none():
    assert Track("Sun", "Ann", 120).rest_seconds() == 0


def test_is_long_at_the_limit():
    assert Track("Sun", "Ann", 300).is_long() is True


def test_is_long_above_the_limit():
    assert Track("Sun", "Ann", 90).is_long(60) is True


def test_is_long_not_below():
    assert Track("Sun", "Ann", 299).is_long() is False


def test_label_with_artist():
    assert Track("Sun", "Ann", 60).label() == "ANN - Sun"


def test_label_without_artist():
    assert Track("Sun", "", 60).label() == "UNKNOWN - Sun"


def test_is_live_by_title():
    assert Track("Sun (Live)", "Ann", 60).is_live() is True


def test_is_live_by_tag():
    track = Track("Sun", "Ann", 60)
    track.tags = ["rock", "live"]
    assert track.is_live() is True


def test_is_live_not_in_front():
    assert Track("(Live) Sun", "Ann", 60).is_live() is False


def test_age_in_years():
    track = Track("Sun", "Ann", 60)
    track.year = 1999
    assert track.age(2020) == 21


def test_age_unknown():
    assert Track("Sun", "Ann", 60).age(2020) is None


def test_sort_title_small_letters():
    assert Track("Sun", "Ann", 60).sort_title() == "sun"


def test_sort_title_without_article():
    assert Track("The Sun", "Ann", 60).sort_title() == "sun"


def test_sort_title_article_behind():
    assert Track("Pass the ", "Ann", 60).sort_title() == "pass the "


def test_sort_title_spaces_in_front():
    assert Track("  Sun", "Ann", 60).sort_title() == "sun"


def test_add_tag_new():
    track = Track("Sun", "Ann", 60)
    assert track.add_tag("rock") is True
    assert track.tags == ["rock"]


def test_add_tag_again():
    track = Track("Sun", "Ann", 60)
    track.tags = ["rock"]
    assert track.add_tag("rock") is False
    assert track.tags == ["rock"]


def test_main_tag_first():
    track = Track("Sun", "Ann", 60)
    track.tags = ["rock", "slow"]
    assert track.main_tag() == "rock"


def test_main_tag_of_none():
    assert Track("Sun", "Ann", 60).main_tag() == "pop"


def test_same_as_any_case():
    assert Track("Sun", "Ann", 60).same_as("SUN", "Ann") is True


def test_same_as_other_artist():
    assert Track("Sun", "Ann", 60).same_as("Sun", "Bob") is False


def test_same_as_other_title():
    assert Track("Sun", "Ann", 60).same_as("Moon", "Ann") is False


def test_decade_of_year():
    track = Track("Sun", "Ann", 60)
    track.year = 1994
    assert track.decade() == "1990s"


def test_decade_first():
    track = Track("Sun", "Ann", 60)
    track.year = 1950
    assert track.decade() == "1950s"


def test_decade_before():
    track = Track("Sun", "Ann", 60)
    track.year = 1949
    assert track.decade() == "old"


def test_decade_unknown():
    assert Track("Sun", "Ann", 60).decade() == "old"
