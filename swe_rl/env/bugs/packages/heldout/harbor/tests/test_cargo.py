from harbor.cargo import balance
from harbor.cargo import boxes_before_shift_end
from harbor.cargo import container_owner
from harbor.cargo import crane_minutes
from harbor.cargo import import_tons
from harbor.cargo import is_reefer
from harbor.cargo import passes_customs
from harbor.cargo import slot_of
from harbor.cargo import stack_height
from harbor.cargo import top_box


def test_container_owner_in_capitals():
    assert container_owner("mscu1234") == "MSCU"


def test_container_owner_after_dashes():
    assert container_owner("-- MSCU1234") == "MSCU"


def test_container_owner_keeps_dashes_behind():
    assert container_owner("AB--") == "AB--"


def test_stack_height_of_full_columns():
    assert stack_height(12, 4) == 3


def test_stack_height_with_a_rest():
    assert stack_height(13, 4) == 4


def test_stack_height_of_nothing():
    assert stack_height(0, 4) == 0


def test_slot_of_the_first_container():
    assert slot_of(1, 4) == (1, 0)


def test_slot_of_the_end_of_a_level():
    assert slot_of(4, 4) == (1, 3)


def test_slot_of_a_higher_level():
    assert slot_of(11, 4) == (3, 2)


def test_crane_minutes_of_one_crane():
    assert crane_minutes(10, 1) == 30


def test_crane_minutes_are_shared():
    assert crane_minutes(10, 4) == 7


def test_crane_minutes_of_too_many_cranes():
    assert crane_minutes(20, 9) == 15


def test_passes_customs_when_sealed():
    assert passes_customs(["ivory"], True) is True


def test_passes_customs_with_plain_goods():
    assert passes_customs(["tea", "wool"], False) is True


def test_passes_customs_not_with_one_forbidden():
    assert passes_customs(["tea", "fireworks"], False) is False


def test_passes_customs_without_goods():
    assert passes_customs([], False) is True


def test_is_reefer_by_its_code():
    assert is_reefer("MSCU12R", 20) is True


def test_is_reefer_by_its_cold():
    assert is_reefer("MSCU12", 7) is True
    assert is_reefer("MSCU12", -5) is True


def test_is_reefer_not_when_warm():
    assert is_reefer("R12X", 8) is False
    assert is_reefer("MSCU12", 15) is False


def test_is_reefer_without_a_code():
    assert is_reefer(None, 2) is True
    assert is_reefer(None, 9) is False


def test_boxes_before_shift_end_uses_all_the_time():
    assert boxes_before_shift_end([4, 6, 5], 10) == 2


def test_boxes_before_shift_end_stops_at_a_slow_box():
    assert boxes_before_shift_end([4, 9, 2], 10) == 1


def test_boxes_before_shift_end_without_time():
    assert boxes_before_shift_end([4], 0) == 0


def test_boxes_before_shift_end_unloads_all():
    assert boxes_before_shift_end([4, 4, 4], 60) == 3


def test_import_tons_adds_up():
    assert import_tons([("in", 30), ("IN", 12)]) == 42


def test_import_tons_leaves_exports_out():
    assert import_tons([("out", 30), ("In", 12)]) == 12


def test_import_tons_by_its_long_name():
    assert import_tons([("import", 8), ("export", 5)]) == 8


def test_import_tons_of_nothing():
    assert import_tons([]) == 0


def test_top_box_is_the_last():
    assert top_box(["a", "b", "c"]) == "c"


def test_top_box_of_one():
    assert top_box(["a"]) == "a"


def test_top_box_of_an_empty_stack():
    assert top_box([]) is None


def test_balance_even_up_to_five():
    assert balance([20, 5], [20]) == "even"
    assert balance([20], [20, 5]) == "even"


def test_balance_even_when_equal():
    assert balance([20], [20]) == "even"


def test_balance_heavy_port():
    assert balance([20, 6], [20]) == "port"


def test_balance_heavy_starboard():
    assert balance([20], [20, 6]) == "starboard"
