from tariff.shipping import Parcel
from tariff.shipping import any_fragile
from tariff.shipping import base_fee
from tariff.shipping import boxes_needed
from tariff.shipping import heaviest
from tariff.shipping import island_fee
from tariff.shipping import parcel_fee
from tariff.shipping import short_street
from tariff.shipping import valid_postcode
from tariff.shipping import vans_needed
from tariff.shipping import weight_class
from tariff.shipping import zone


def test_weight_class_small():
    assert weight_class(500) == "small"


def test_weight_class_medium():
    assert weight_class(501) == "medium"
    assert weight_class(2000) == "medium"


def test_weight_class_large():
    assert weight_class(2001) == "large"


def test_base_fee_below_a_kilogram():
    assert base_fee(999) == 300


def test_base_fee_with_kilograms():
    assert base_fee(3500) == 450


def test_island_fee_in_any_case():
    assert island_fee("Sylt") == 400


def test_island_fee_elsewhere():
    assert island_fee("bonn") == 0


def test_parcel_fee_plain():
    assert parcel_fee(Parcel(800)) == 300


def test_parcel_fee_free_from_the_value():
    assert parcel_fee(Parcel(800, value=5000)) == 0
    assert parcel_fee(Parcel(800, value=4999)) == 300


def test_parcel_fee_fragile():
    assert parcel_fee(Parcel(800, value=9000, fragile=True)) == 550


def test_parcel_fee_to_an_island():
    assert parcel_fee(Parcel(800, place="juist")) == 700


def test_boxes_needed_exact():
    assert boxes_needed(8, 4) == 2


def test_boxes_needed_for_a_rest():
    assert boxes_needed(9, 4) == 3


def test_boxes_needed_for_nothing():
    assert boxes_needed(0, 4) == 0


def test_valid_postcode_accepts():
    assert valid_postcode("24100")
    assert valid_postcode("01067")


def test_valid_postcode_not_with_two_zeros():
    assert valid_postcode("00123") is False


def test_valid_postcode_needs_five_digits():
    assert not valid_postcode("2410")
    assert not valid_postcode("2410a")


def test_zone_is_the_first_digit():
    assert zone("24109") == 2


def test_zone_without_postcode():
    assert zone("") == 1


def test_short_street_is_shortened():
    assert short_street("Mill street.") == "Mill st"


def test_short_street_keeps_others():
    assert short_street("street of mills") == "street of mills"


def test_short_street_drops_dots_at_the_end():
    assert short_street(".Lane. ") == ".Lane"


def test_heaviest_of_several():
    parcels = [Parcel(100), Parcel(900), Parcel(300)]
    assert heaviest(parcels) is parcels[1]


def test_heaviest_takes_the_first_of_equals():
    parcels = [Parcel(900), Parcel(900)]
    assert heaviest(parcels) is parcels[0]


def test_heaviest_of_none():
    assert heaviest([]) is None


def test_any_fragile_one_is_enough():
    assert any_fragile([Parcel(1), Parcel(2, fragile=True)])


def test_any_fragile_none():
    assert not any_fragile([Parcel(1)])
    assert not any_fragile([])


def test_vans_needed_full_load():
    assert vans_needed([4, 6], 10) == 1


def test_vans_needed_one_more():
    assert vans_needed([4, 7], 10) == 2


def test_vans_needed_in_order():
    assert vans_needed([6, 5, 5, 6], 10) == 3


def test_vans_needed_for_nothing():
    assert vans_needed([], 10) == 1
