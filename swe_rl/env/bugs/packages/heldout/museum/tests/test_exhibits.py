from museum.exhibits import Exhibit
from museum.exhibits import all_dated
from museum.exhibits import artist_of
from museum.exhibits import catalog_number
from museum.exhibits import century
from museum.exhibits import first_gap
from museum.exhibits import loaned_value
from museum.exhibits import oldest_title
from museum.exhibits import sort_title


def test_age_in_a_later_year():
    assert Exhibit("Vase", 1850).age_in(2000) == 150


def test_age_in_an_earlier_year():
    assert Exhibit("Vase", 1850).age_in(1800) == 0


def test_is_treasure_from_the_value():
    assert Exhibit("Crown", 1500, 10000).is_treasure()
    assert not Exhibit("Crown", 1500, 9999).is_treasure()


def test_is_treasure_not_on_loan():
    assert not Exhibit("Crown", 1500, 20000, True).is_treasure()


def test_century_of_a_year():
    assert century(1815) == 19


def test_century_at_its_ends():
    assert century(1900) == 19
    assert century(1901) == 20


def test_oldest_title_by_year():
    vase = Exhibit("Vase", 1850)
    assert oldest_title([vase, Exhibit("Urn", 900), Exhibit("Cup", 1990)]) == "Urn"


def test_oldest_title_of_nothing():
    assert oldest_title([]) == ""


def test_sort_title_without_the_article():
    assert sort_title("The Kiss") == "kiss"


def test_sort_title_of_other_titles():
    assert sort_title("Theatre") == "theatre"


def test_sort_title_with_a_late_article():
    assert sort_title("Into the ") == "into the "


def test_artist_of_a_label():
    assert artist_of("Fog, oil, Turner") == "Turner"


def test_artist_of_a_short_label():
    assert artist_of("Fog") is None


def test_catalog_number_after_the_prefix():
    assert catalog_number("No. 42") == 42


def test_catalog_number_without_a_prefix():
    assert catalog_number("17") == 17


def test_catalog_number_missing():
    assert catalog_number("unknown") == 0
    assert catalog_number("42 No.") == 0


def test_first_gap_on_the_wall():
    assert first_gap([1, 2, 4, 3]) == 3


def test_first_gap_behind_the_last():
    assert first_gap([1, 2]) == 3


def test_first_gap_of_an_empty_wall():
    assert first_gap([]) == 1


def test_loaned_value_adds_up():
    urn = Exhibit("Urn", 900, 70, True)
    assert loaned_value([urn, Exhibit("Cup", 1990, 30, True)]) == 100


def test_loaned_value_leaves_the_others_out():
    urn = Exhibit("Urn", 900, 70, True)
    assert loaned_value([Exhibit("Cup", 1990, 30), urn]) == 70


def test_loaned_value_of_nothing():
    assert loaned_value([]) == 0


def test_all_dated_with_years():
    assert all_dated([Exhibit("Urn", 900), Exhibit("Cup", 1990)])


def test_all_dated_not_with_one_missing():
    assert not all_dated([Exhibit("Urn", 900), Exhibit("Cup", None)])


def test_all_dated_of_nothing():
    assert all_dated([])
