from routes.stops import clean_name
from routes.stops import fare
from routes.stops import find_stop
from routes.stops import join_lines
from routes.stops import next_stop
from routes.stops import served
from routes.stops import stop_code
from routes.stops import stops_between
from routes.stops import terminus
from routes.stops import transfers
from routes.stops import zones_crossed

LINE = ["Port", "Market", "Park", "Zoo"]


def test_clean_name_drops_marks_in_front():
    assert clean_name("* Zoo-") == "Zoo-"


def test_clean_name_ends_abbreviation():
    assert clean_name("Mainstr") == "Mainstr."


def test_clean_name_keeps_others():
    assert clean_name("strand") == "strand"


def test_stop_code_in_capitals():
    assert stop_code("Market") == "MAR"


def test_stop_code_of_three_letters():
    assert stop_code("Z oo") == "ZOO"


def test_stop_code_too_short():
    assert stop_code("Zo") == "X"


def test_find_stop_by_beginning():
    assert find_stop(LINE, "PAR") == 2


def test_find_stop_takes_the_first():
    assert find_stop(LINE, "p") == 0


def test_find_stop_absent():
    assert find_stop(LINE, "ket") == -1


def test_stops_between_two():
    assert stops_between(LINE, "Port", "Zoo") == 2
    assert stops_between(LINE, "Park", "Port") == 1


def test_stops_between_neighbours():
    assert stops_between(LINE, "Port", "Market") == 0


def test_stops_between_the_same():
    assert stops_between(LINE, "Zoo", "Zoo") == 0


def test_stops_between_unknown():
    assert stops_between(LINE, "Mill", "Zoo") == 0


def test_next_stop_follows():
    assert next_stop(LINE, "Port") == "Market"
    assert next_stop(LINE, "Park") == "Zoo"


def test_next_stop_after_the_last():
    assert next_stop(LINE, "Zoo") is None


def test_next_stop_of_a_ring():
    assert next_stop(LINE, "Zoo", ring=True) == "Port"


def test_terminus_is_the_last():
    assert terminus(["Port", ".Zoo."]) == ".Zoo"


def test_terminus_of_an_empty_line():
    assert terminus([]) is None


def test_join_lines_shared_end():
    assert join_lines(["A", "B"], ["B", "C"]) == ["A", "B", "C"]


def test_join_lines_apart():
    assert join_lines(["A", "B"], ["C", "D"]) == ["A", "B", "C", "D"]


def test_join_lines_with_an_empty_one():
    assert join_lines([], ["C", "D"]) == ["C", "D"]
    assert join_lines(["A"], []) == ["A"]


def test_transfers_needed():
    assert transfers([["A", "B"], ["B", "C"]], "A", "C") is True


def test_transfers_not_on_one_line():
    assert transfers([["A", "B"], ["B", "C"]], "C", "B") is False


def test_transfers_one_stop_is_not_enough():
    assert transfers([["A", "B"]], "A", "C") is True
    assert transfers([["A", "B"]], "C", "A") is True


def test_served_by_one_line():
    assert served([["A", "B"], ["B", "C"]], "C")


def test_served_by_none():
    assert not served([["A", "B"]], "C")
    assert not served([], "C")


def test_zones_crossed_in_a_row():
    assert zones_crossed(["a", "a", "b"]) == 2


def test_zones_crossed_coming_back():
    assert zones_crossed(["a", "b", "a"]) == 3


def test_zones_crossed_of_nothing():
    assert zones_crossed([]) == 0


def test_fare_of_one_zone():
    assert fare(1) == 150


def test_fare_of_more_zones():
    assert fare(3) == 310


def test_fare_is_limited():
    assert fare(9) == 600


def test_fare_of_a_child():
    assert fare(2, child=True) == 115
