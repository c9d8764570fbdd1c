from playlist import mixing


def test_rotate_some_steps():
    assert mixing.rotate([1, 2, 3, 4], 1) == [2, 3, 4, 1]


def test_rotate_more_than_size():
    assert mixing.rotate([1, 2, 3], 5) == [3, 1, 2]


def test_rotate_nothing():
    assert mixing.rotate([], 2) == []


def test_riffle_even():
    assert mixing.riffle([1, 2, 3, 4]) == [1, 3, 2, 4]


def test_riffle_odd():
    assert mixing.riffle([1, 2, 3, 4, 5]) == [1, 3, 2, 4, 5]


def test_riffle_nothing():
    assert mixing.riffle([]) == []


def test_every_second():
    assert mixing.every([1, 2, 3, 4, 5], 2) == [1, 3, 5]


def test_every_single_one():
    assert mixing.every([1, 2], 1) == [1, 2]


def test_every_wrong_step():
    assert mixing.every([1, 2], 0) == []


def test_no_repeats_keeps_order():
    assert mixing.no_repeats([3, 1, 3, 2, 1]) == [3, 1, 2]


def test_no_repeats_of_nothing():
    assert mixing.no_repeats([]) == []


def test_no_neighbours_true():
    assert mixing.no_neighbours([1, 2, 1]) is True


def test_no_neighbours_false():
    assert mixing.no_neighbours([1, 1, 2]) is False


def test_no_neighbours_one_item():
    assert mixing.no_neighbours([1]) is True


def test_up_to_stop():
    assert mixing.up_to([1, 2, 3], 3) == [1, 2]


def test_up_to_without_stop():
    assert mixing.up_to([1, 2]) == [1, 2]


def test_up_to_missing_stop():
    assert mixing.up_to([1, 2], 9) == [1, 2]


def test_pick_by_seed():
    assert mixing.pick(["a", "b", "c", "d"], 2) == "b"


def test_pick_seed_zero():
    assert mixing.pick(["a", "b", "c", "d", "e"], 0) == "d"


def test_pick_from_nothing():
    assert mixing.pick([], 5) is None


def test_swap_ends_of_three():
    assert mixing.swap_ends([1, 2, 3]) == [3, 2, 1]


def test_swap_ends_of_two():
    assert mixing.swap_ends([1, 2]) == [2, 1]


def test_swap_ends_of_one():
    assert mixing.swap_ends([1]) == [1]


def test_is_mixed_other_order():
    assert mixing.is_mixed([1, 2, 3], [3, 1, 2]) is True


def test_is_mixed_not_same_order():
    assert mixing.is_mixed([1, 2], [1, 2]) is False


def test_is_mixed_not_other_items():
    assert mixing.is_mixed([1, 2], [1, 3]) is False


def test_opener_last_match():
    assert mixing.opener(["sun", "moon", "sunny", "new sun"], "sun") == "sunny"


def test_opener_no_match():
    assert mixing.opener(["moon"], "sun") is None


def test_bounce_on_the_way_up():
    assert mixing.bounce(2, 4) == 2


def test_bounce_on_the_way_back():
    assert mixing.bounce(5, 4) == 1


def test_bounce_on_a_single_place():
    assert mixing.bounce(2, 1) == 0
