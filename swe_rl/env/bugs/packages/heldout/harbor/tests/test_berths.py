from harbor.berths import Ship
from harbor.berths import berth_fee
from harbor.berths import can_moor
from harbor.berths import first_free
from harbor.berths import longest_ship
from harbor.berths import queue_head
from harbor.berths import quay_side


def test_is_guest_under_a_far_flag():
    assert Ship("Ada", "NO", 60, 4, None).is_guest() is True


def test_is_guest_not_under_our_flag():
    assert Ship("Ada", "DK", 60, 4, None).is_guest() is False


def test_is_guest_not_the_navy():
    assert Ship("Ada (navy)", "NO", 60, 4, None).is_guest() is False


def test_is_guest_navy_elsewhere_in_the_name():
    assert Ship("(navy) Ada", "NO", 60, 4, None).is_guest() is True


def test_needs_tug_when_long():
    assert Ship("Ada", "de", 181, 9, "Olsen").needs_tug() is True


def test_needs_tug_not_with_a_pilot():
    assert Ship("Ada", "de", 180, 9, "Olsen").needs_tug() is False


def test_needs_tug_without_a_pilot():
    assert Ship("Ada", "de", 90, 5, None).needs_tug() is True
    assert Ship("Ada", "de", 120, 5, None).needs_tug() is True


def test_needs_tug_not_when_short():
    assert Ship("Ada", "de", 89, 5, None).needs_tug() is False


def test_mooring_lines_of_a_boat():
    assert Ship("Ada", "de", 49, 3, None).mooring_lines() == 4


def test_mooring_lines_of_a_long_ship():
    assert Ship("Ada", "de", 170, 8, None).mooring_lines() == 10


def test_spare_depth_at_high_tide():
    assert Ship("Ada", "de", 60, 4, None).spare_depth(7, 2) == 5


def test_spare_depth_at_low_tide():
    assert Ship("Ada", "de", 60, 4, None).spare_depth(7, -2) == 1


def test_spare_depth_never_negative():
    assert Ship("Ada", "de", 60, 9, None).spare_depth(7, 1) == 0


def test_can_moor_at_full_length():
    assert can_moor(Ship("Ada", "de", 60, 4, None), 60, 5) is True


def test_can_moor_not_when_too_long():
    assert can_moor(Ship("Ada", "de", 61, 4, None), 60, 5) is False


def test_can_moor_not_when_aground():
    assert can_moor(Ship("Ada", "de", 50, 5, None), 60, 5) is False


def test_can_moor_with_room_to_spare():
    assert can_moor(Ship("Ada", "de", 20, 2, None), 60, 5) is True


def test_first_free_at_the_start():
    assert first_free([None, "Ada"]) == 1


def test_first_free_further_on():
    assert first_free(["Ada", "Bo", None, None]) == 3


def test_first_free_in_a_full_harbor():
    assert first_free(["Ada", "Bo"]) == 0


def test_longest_ship_comes_last():
    ships = [Ship("Ada", "de", 60, 4, None), Ship("Bo", "de", 80, 4, None)]
    assert longest_ship(ships).name == "Bo"


def test_longest_ship_after_a_shorter_one():
    ships = [Ship("Ada", "de", 60, 4, None), Ship("Bo", "de", 50, 4, None)]
    assert longest_ship(ships + [Ship("Cy", "de", 70, 4, None)]).name == "Cy"


def test_longest_ship_comes_first():
    ships = [Ship("Ada", "de", 60, 4, None), Ship("Bo", "de", 50, 4, None)]
    assert longest_ship(ships).name == "Ada"


def test_longest_ship_first_of_equals():
    ships = [Ship("Ada", "de", 60, 4, None), Ship("Bo", "de", 60, 4, None)]
    assert longest_ship(ships).name == "Ada"


def test_longest_ship_of_none():
    assert longest_ship([]) is None


def test_quay_side_of_odd_berths():
    assert quay_side(1) == "north"
    assert quay_side(7) == "north"


def test_quay_side_of_even_berths():
    assert quay_side(2) == "south"
    assert quay_side(6) == "south"


def test_quay_side_of_closed_berths():
    assert quay_side(3) == "closed"
    assert quay_side(4) == "closed"


def test_berth_fee_of_one_day():
    assert berth_fee(50, 1) == 20


def test_berth_fee_from_the_second_day():
    assert berth_fee(50, 2) == 150


def test_berth_fee_of_a_long_stay():
    assert berth_fee(20, 5) == 240


def test_berth_fee_without_a_day():
    assert berth_fee(50, 0) == 20


def test_queue_head_is_the_first():
    assert queue_head(["Ada", "Bo", "Cleo"]) == "ADA"


def test_queue_head_of_one():
    assert queue_head(["Bo"]) == "BO"


def test_queue_head_of_nobody():
    assert queue_head([]) == "nobody"
