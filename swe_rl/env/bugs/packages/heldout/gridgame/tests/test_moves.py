from gridgame import moves


def test_distance_both_ways():
    assert moves.distance((1, 1), (4, 3)) == 5
    assert moves.distance((4, 3), (1, 1)) == 5


def test_distance_to_itself():
    assert moves.distance((2, 5), (2, 5)) == 0


def test_king_steps_slanted():
    assert moves.king_steps((1, 1), (4, 3)) == 3


def test_king_steps_straight():
    assert moves.king_steps((0, 6), (0, 2)) == 4


def test_may_reach_at_the_limit():
    assert moves.may_reach((0, 5), (2, 6), 3) is True


def test_may_reach_nearby():
    assert moves.may_reach((2, 2), (2, 3), 3) is True


def test_may_reach_not_beyond():
    assert moves.may_reach((0, 0), (2, 2), 3) is False


def test_may_reach_not_itself():
    assert moves.may_reach((2, 1), (2, 1), 3) is False


def test_is_straight_along_column():
    assert moves.is_straight((2, 1), (2, 5)) is True


def test_is_straight_along_row():
    assert moves.is_straight((0, 5), (3, 5)) is True


def test_is_straight_not_slanted():
    assert moves.is_straight((0, 1), (1, 2)) is False


def test_wrap_over_the_end():
    assert moves.wrap(9, 8) == 1


def test_wrap_below_the_start():
    assert moves.wrap(-1, 8) == 7


def test_wrap_size_one():
    assert moves.wrap(5, 1) == 0


def test_wrap_without_size():
    assert moves.wrap(5, 0) == 5


def test_middle_exact():
    assert moves.middle(2, 6) == 4


def test_middle_smaller_one():
    assert moves.middle(3, 6) == 4


def test_parse_cell_small_letter():
    assert moves.parse_cell("b3") == (1, 2)


def test_parse_cell_capital():
    assert moves.parse_cell("C10") == (2, 9)


def test_parse_cell_without_number():
    assert moves.parse_cell("b") is None


def test_parse_cell_without_letter():
    assert moves.parse_cell("33") is None


def test_path_is_free_true():
    assert moves.path_is_free([(0, 1), (0, 2)], {(5, 5)}) is True


def test_path_is_free_one_taken():
    assert moves.path_is_free([(0, 1), (0, 2)], {(0, 2)}) is False


def test_path_is_free_empty():
    assert moves.path_is_free([], {(0, 2)}) is True


def test_last_hit_of_two():
    path = [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert moves.last_hit(path, {(0, 1), (0, 3)}) == (0, 3)


def test_last_hit_nothing():
    assert moves.last_hit([(0, 1)], {(0, 3)}) is None


def test_is_capture_with_piece():
    assert moves.is_capture("Nxb3+") is True


def test_is_capture_without_piece():
    assert moves.is_capture("xb3") is True


def test_is_capture_not_a_step():
    assert moves.is_capture("Nb3") is False


def test_is_capture_needs_a_cell():
    assert moves.is_capture("Nx#") is False
