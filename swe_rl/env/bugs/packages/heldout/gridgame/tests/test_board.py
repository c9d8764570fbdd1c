from gridgame.board import Board


def test_inside_first_cell():
    assert Board(4, 3).inside(0, 0) is True


def test_inside_last_cell():
    assert Board(4, 3).inside(3, 2) is True


def test_inside_not_left_or_right():
    assert Board(4, 3).inside(-1, 1) is False
    assert Board(4, 3).inside(4, 1) is False


def test_inside_not_above_or_below():
    assert Board(4, 3).inside(1, -1) is False
    assert Board(4, 3).inside(1, 3) is False


def test_cell_number_of_first_row():
    assert Board(4, 3).cell_number(3, 0) == 3


def test_cell_number_of_last_row():
    assert Board(4, 3).cell_number(1, 2) == 9


def test_cell_at_first_row():
    assert Board(4, 3).cell_at(3) == (3, 0)


def test_cell_at_last_row():
    assert Board(4, 3).cell_at(9) == (1, 2)


def test_place_on_free_cell():
    board = Board(4, 3)
    assert board.place("X", (1, 1)) is True
    assert board.pieces == {(1, 1): "x"}


def test_place_on_taken_cell():
    board = Board(4, 3)
    board.pieces = {(1, 1): "o"}
    assert board.place("x", (1, 1)) is False
    assert board.pieces == {(1, 1): "o"}


def test_is_full_with_all_cells():
    board = Board(2, 1)
    board.pieces = {(0, 0): "x", (1, 0): "o"}
    assert board.is_full() is True


def test_is_full_not_with_some():
    board = Board(2, 2)
    board.pieces = {(0, 0): "x", (1, 0): "o"}
    assert board.is_full() is False


def test_count_pieces():
    board = Board(4, 3)
    board.pieces = {(0, 0): "x", (1, 0): "o", (2, 0): "x"}
    assert board.count("x") == 2


def test_count_without_pieces():
    assert Board(4, 3).count("x") == 0


def test_row_text_with_gap():
    board = Board(4, 3)
    board.pieces = {(0, 1): "x", (2, 1): "o"}
    assert board.row_text(1) == "x.o."


def test_row_text_free_start():
    board = Board(4, 3)
    board.pieces = {(3, 0): "x"}
    assert board.row_text(0) == "x"


def test_row_text_free_row():
    assert Board(4, 3).row_text(2) == ""


def test_row_taken_by_a_piece():
    board = Board(4, 3)
    board.pieces = {(2, 1): "x", (3, 0): "x"}
    assert board.row_taken(1) is True


def test_row_taken_not():
    board = Board(4, 3)
    board.pieces = {(2, 1): "x"}
    assert board.row_taken(2) is False


def test_row_taken_on_free_board():
    assert Board(4, 3).row_taken(0) is False


def test_last_column_of_row():
    board = Board(4, 3)
    board.pieces = {(2, 1): "x", (1, 1): "o", (3, 0): "x"}
    assert board.last_column(1) == 2


def test_last_column_of_free_row():
    board = Board(4, 3)
    board.pieces = {(2, 1): "x"}
    assert board.last_column(0) is None


def test_is_corner_first_and_last():
    assert Board(4, 3).is_corner(0, 0) is True
    assert Board(4, 3).is_corner(3, 2) is True


def test_is_corner_not_at_the_side():
    assert Board(4, 3).is_corner(0, 1) is False


def test_is_corner_not_at_the_end():
    assert Board(4, 3).is_corner(2, 2) is False


def test_is_corner_not_in_the_middle():
    assert Board(4, 3).is_corner(1, 1) is False
