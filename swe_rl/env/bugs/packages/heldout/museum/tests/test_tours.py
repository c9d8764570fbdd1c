from museum.tours import Tour
from museum.tours import all_full
from museum.tours import audio_guides
from museum.tours import clean_stop
from museum.tours import floor_of
from museum.tours import rooms_before_cafe
from museum.tours import wait_minutes
from museum.tours import walk_minutes


def test_seats_left_with_guests():
    assert Tour(5, ["ann", "bob"]).seats_left() == 3


def test_seats_left_without_guests():
    assert Tour(5).seats_left() == 5


def test_join_adds_a_guest():
    tour = Tour(2, ["ann"])
    assert tour.join("bob") is True
    assert tour.guests == ["ann", "bob"]


def test_join_not_twice():
    tour = Tour(3, ["ann"])
    assert tour.join("ann") is False
    assert tour.guests == ["ann"]


def test_join_not_without_a_seat():
    tour = Tour(1, ["ann"])
    assert tour.join("bob") is False
    assert tour.guests == ["ann"]


def test_speaks_in_any_case():
    assert Tour(5).speaks("English") is True


def test_speaks_no_other_language():
    assert Tour(5).speaks("dutch") is False


def test_speaks_to_everyone_when_silent():
    assert Tour(5, language=None).speaks("dutch") is True


def test_wait_minutes_for_the_next():
    assert wait_minutes(50, 20) == 10
    assert wait_minutes(7, 20) == 13


def test_wait_minutes_at_the_start():
    assert wait_minutes(40, 20) == 0


def test_walk_minutes_through_rooms():
    assert walk_minutes(7) == 14


def test_walk_minutes_with_stops():
    assert walk_minutes(7, ["vase", "urn", "cup"]) == 29


def test_walk_minutes_at_most_ninety():
    assert walk_minutes(60) == 90


def test_rooms_before_cafe_on_the_way():
    assert rooms_before_cafe(["hall", "attic", "cafe", "shop"]) == 2


def test_rooms_before_cafe_at_once():
    assert rooms_before_cafe(["cafe", "hall"]) == 0


def test_rooms_before_cafe_that_is_missing():
    assert rooms_before_cafe(["hall", "attic"]) == 2


def test_audio_guides_for_other_languages():
    assert audio_guides(["fr", "EN", "nl"]) == 3


def test_audio_guides_not_for_english():
    assert audio_guides(["en", "En"]) == 1


def test_audio_guides_spare_one():
    assert audio_guides([]) == 1


def test_floor_of_a_room():
    assert floor_of("b12") == "B"


def test_floor_of_no_room():
    assert floor_of("") == "G"


def test_clean_stop_without_number_and_dot():
    assert clean_stop("3. Main hall.") == "Main hall"


def test_clean_stop_keeps_a_final_number():
    assert clean_stop(".Room 12") == "Room 12"


def test_clean_stop_that_is_closed():
    assert clean_stop("4. Attic (closed)") is None


def test_clean_stop_with_closed_in_front():
    assert clean_stop("(closed) garden") == "(closed) garden"


def test_all_full_without_seats():
    assert all_full([Tour(1, ["ann"]), Tour(0)])


def test_all_full_not_with_one_seat():
    assert not all_full([Tour(1, ["ann"]), Tour(1)])


def test_all_full_of_no_tours():
    assert all_full([])
