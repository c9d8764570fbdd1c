from sensors.devices import Device
from sensors.devices import battery_days
from sensors.devices import calibrate
from sensors.devices import device_type
from sensors.devices import minutes_ago
from sensors.devices import needs_battery
from sensors.devices import next_name
from sensors.devices import parse_reading
from sensors.devices import poll_second
from sensors.devices import room_label
from sensors.devices import to_celsius
from sensors.devices import unit_name
from sensors.devices import weakest


def test_unit_name_in_any_case():
    assert unit_name("C") == "celsius"
    assert unit_name("k") == "kelvin"


def test_unit_name_with_a_degree_sign():
    assert unit_name("°f") == "fahrenheit"


def test_unit_name_unknown():
    assert unit_name("x") == "unknown"
    assert unit_name("c°") == "unknown"


def test_to_celsius_from_kelvin():
    assert to_celsius(300, "K") == 27


def test_to_celsius_from_fahrenheit():
    assert to_celsius(212, "F") == 100
    assert to_celsius(51, "F") == 10


def test_to_celsius_from_celsius():
    assert to_celsius(21, "C") == 21


def test_calibrate_adds_the_offset():
    assert calibrate(Device("t1", offset=-2), 20) == 18


def test_calibrate_missing():
    assert calibrate(Device("t1", offset=-2), None) is None


def test_parse_reading_with_a_unit():
    assert parse_reading("T1=25C") == ("t1", 25)


def test_parse_reading_without_a_unit():
    assert parse_reading("t1=7") == ("t1", 7)


def test_parse_reading_broken():
    assert parse_reading("t1=C") is None
    assert parse_reading("t1") is None


def test_device_type_test():
    assert device_type("out-test") == "test"


def test_device_type_outdoor():
    assert device_type("out-3") == "outdoor"


def test_device_type_indoor():
    assert device_type("-test-without") == "indoor"


def test_needs_battery_below_the_limit():
    assert needs_battery(Device("t1", battery=19)) is True


def test_needs_battery_not_at_the_limit():
    assert needs_battery(Device("t1", battery=20)) is False


def test_needs_battery_offline():
    assert needs_battery(Device("t1", battery=99, online=False)) is True


def test_needs_battery_not_when_full():
    assert needs_battery(Device("t1", battery=100, online=False)) is False


def test_battery_days_full_days():
    assert battery_days(50, 8) == 6


def test_battery_days_without_use():
    assert battery_days(50, 0) == 999


def test_weakest_has_the_lowest_battery():
    devices = [Device("a", battery=9), Device("b", battery=3), Device("c")]
    assert weakest(devices) == "b"


def test_weakest_skips_offline():
    devices = [Device("a", battery=9), Device("b", battery=3, online=False)]
    assert weakest(devices) == "a"


def test_weakest_of_none():
    assert weakest([]) is None


def test_room_label_in_capitals():
    assert room_label(Device("t1", room="kitchen")) == "KITCHEN"


def test_room_label_drops_numbers_at_the_end():
    assert room_label(Device("t1", room="3rd hall12")) == "3RD HALL"


def test_room_label_missing():
    assert room_label(Device("t1", room="12")) == "?"


def test_next_name_first():
    assert next_name([], "t") == "t1"


def test_next_name_after_others():
    assert next_name(["t1", "t2"], "t") == "t3"


def test_next_name_in_a_gap():
    assert next_name(["t1", "t3"], "t") == "t2"


def test_minutes_ago_seconds():
    assert minutes_ago(59) == "59 s"


def test_minutes_ago_minutes():
    assert minutes_ago(60) == "1 min 0 s"
    assert minutes_ago(150) == "2 min 30 s"


def test_poll_second_spreads():
    assert [poll_second(slot, 4) for slot in range(4)] == [0, 15, 30, 45]


def test_poll_second_starts_again():
    assert poll_second(5, 4) == 15
