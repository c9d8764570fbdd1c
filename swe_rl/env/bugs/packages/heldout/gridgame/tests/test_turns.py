from gridgame.turns import Turns


def test_current_at_first():
    assert Turns(["ann", "bob", "cid"]).current() == "ann"


def test_current_in_second_round():
    turns = Turns(["ann", "bob", "cid"])
    turns.turn = 5
    assert turns.current() == "cid"


def test_round_number_first():
    turns = Turns(["ann", "bob", "cid"])
    turns.turn = 2
    assert turns.round_number() == 1


def test_round_number_third():
    turns = Turns(["ann", "bob"])
    turns.turn = 5
    assert turns.round_number() == 3


def test_drop_a_player():
    turns = Turns(["ann", "bob"])
    assert turns.drop("ann") is True
    assert turns.out == {"ann"}


def test_drop_only_once():
    turns = Turns(["ann", "bob"])
    turns.out = {"ann"}
    assert turns.drop("ann") is False


def test_drop_a_stranger():
    turns = Turns(["ann", "bob"])
    assert turns.drop("zoe") is False
    assert turns.out == set()


def test_still_in_order():
    turns = Turns(["cid", "bob", "ann"])
    turns.out = {"bob"}
    assert turns.still_in() == ["cid", "ann"]


def test_still_in_all():
    assert Turns(["ann", "bob"]).still_in() == ["ann", "bob"]


def test_is_over_with_one():
    turns = Turns(["ann", "bob", "cid"])
    turns.out = {"bob", "ann"}
    assert turns.is_over() is True


def test_is_over_with_nobody():
    turns = Turns(["ann", "bob"])
    turns.out = {"bob", "ann"}
    assert turns.is_over() is True


def test_is_over_not_with_two():
    assert Turns(["ann", "bob"]).is_over() is False


def test_pause_sets_the_flag():
    turns = Turns(["ann", "bob"])
    turns.pause()
    assert turns.paused is True
    assert turns.log == ["pause"]


def test_pause_notes_once():
    turns = Turns(["ann", "bob"])
    turns.paused = True
    turns.pause()
    assert turns.log == []


def test_undo_one_turn():
    turns = Turns(["ann", "bob"])
    turns.turn = 5
    assert turns.undo() == 4


def test_undo_some_turns():
    turns = Turns(["ann", "bob"])
    turns.turn = 5
    assert turns.undo(3) == 2


def test_undo_not_below_zero():
    turns = Turns(["ann", "bob"])
    turns.turn = 2
    assert turns.undo(3) == 0


def test_last_entry_of_two():
    turns = Turns(["ann", "bob"])
    turns.log = ["start", "pause"]
    assert turns.last_entry() == "pause"


def test_last_entry_of_empty_log():
    assert Turns(["ann", "bob"]).last_entry() is None


def test_shout_first_player():
    assert Turns(["@ann@", "bob"]).shout() == "ANN@!"


def test_shout_keeps_the_name():
    turns = Turns(["Ann", "Bob"])
    turns.shout()
    assert turns.names == ["Ann", "Bob"]


def test_find_bots_any_case():
    assert Turns(["ann", "RoBot"]).find_bots() == ["robot"]


def test_find_bots_not_in_front():
    assert Turns(["bottle", "ann"]).find_bots() == []


def test_skip_some_turns():
    turns = Turns(["ann", "bob"])
    turns.turn = 2
    assert turns.skip(3) is True
    assert turns.turn == 5


def test_skip_one_turn():
    assert Turns(["ann", "bob"]).skip(1) is True


def test_skip_not_by_zero():
    assert Turns(["ann", "bob"]).skip(0) is False


def test_skip_not_when_paused():
    turns = Turns(["ann", "bob"])
    turns.paused = True
    assert turns.skip(2) is False
    assert turns.turn == 0
