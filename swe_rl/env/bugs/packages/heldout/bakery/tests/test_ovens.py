from bakery.ovens import Oven
from bakery.ovens import all_baked
from bakery.ovens import any_ready
from bakery.ovens import bake_minutes
from bakery.ovens import coolest
from bakery.ovens import last_batch
from bakery.ovens import parse_degrees


def test_is_hot_ten_degrees_short():
    assert Oven(4, 210).is_hot(220)


def test_is_hot_not_any_cooler():
    assert not Oven(4, 209).is_hot(220)


def test_room_counts_free_trays():
    assert Oven(4, loaded=["rye"]).room() == 3


def test_room_in_a_broken_oven():
    assert Oven(4, broken=True).room() == 0


def test_room_in_a_crammed_oven():
    assert Oven(1, loaded=["rye", "bun"]).room() == 0


def test_room_works_by_default():
    assert Oven(2).room() == 2


def test_load_puts_a_tray_in():
    oven = Oven(2)
    assert oven.load("rye") is True
    assert oven.loaded == ["rye"]


def test_load_fails_when_full():
    oven = Oven(1, loaded=["rye"])
    assert oven.load("bun") is False
    assert oven.loaded == ["rye"]


def test_load_refuses_a_tray_twice():
    oven = Oven(3, loaded=["rye"])
    assert oven.load("rye") is False
    assert oven.loaded == ["rye"]


def test_next_out_is_the_first_in():
    assert Oven(4, loaded=["rye", "bun", "pie"]).next_out() == "rye"


def test_next_out_of_an_empty_oven():
    assert Oven(4).next_out() is None


def test_coolest_of_several():
    assert coolest([Oven(1, 90), Oven(2, 60), Oven(3, 80)]).trays == 2


def test_coolest_first_of_equals():
    assert coolest([Oven(1, 60), Oven(2, 60)]).trays == 1


def test_coolest_of_none():
    assert coolest([]) is None


def test_any_ready_finds_one():
    assert any_ready([Oven(1, 50), Oven(1, 200)], 200)


def test_any_ready_not_when_broken_or_cool():
    assert not any_ready([Oven(1, 200, True), Oven(1, 50)], 200)


def test_any_ready_without_ovens():
    assert not any_ready([], 200)


def test_bake_minutes_of_a_loaf():
    assert bake_minutes(780) == 25
    assert bake_minutes(780, "round") == 25


def test_bake_minutes_of_rolls():
    assert bake_minutes(180, "milk roll") == 12


def test_bake_minutes_not_only_named_like_a_roll():
    assert bake_minutes(150, "rolled loaf") == 13


def test_parse_degrees_with_a_unit():
    assert parse_degrees("220 C") == 220
    assert parse_degrees("180") == 180


def test_parse_degrees_with_a_small_letter():
    assert parse_degrees("75c") == 75


def test_parse_degrees_of_other_text():
    assert parse_degrees("hot") is None
    assert parse_degrees("C 220") is None


def test_last_batch_has_the_rest():
    assert last_batch(11, 4) == 3


def test_last_batch_may_be_full():
    assert last_batch(12, 4) == 4


def test_last_batch_of_nothing():
    assert last_batch(0, 4) == 0


def test_all_baked_above_the_limit():
    assert all_baked([96, 99])


def test_all_baked_not_at_the_limit():
    assert not all_baked([95, 99])


def test_all_baked_of_nothing():
    assert all_baked([])
