from texttable import render


def test_rule_of_two_columns():
    assert render.rule([3, 2], "-") == "---+--"


def test_rule_of_one_column():
    assert render.rule([2], "=") == "=="


def test_join_cells_plain():
    assert render.join_cells(["a", "b"]) == "a | b"


def test_join_cells_framed():
    assert render.join_cells(["a", "b"], framed=True) == "| a | b |"


def test_number_rows_from_one():
    assert render.number_rows([["a"], ["b"]]) == [["1", "a"], ["2", "b"]]


def test_number_rows_from_start():
    assert render.number_rows([["a"]], 7) == [["7", "a"]]


def test_number_rows_without_rows():
    assert render.number_rows([]) == []


def test_column_width_longest():
    rows = [["a", "bb"], ["a", "bbbb"], ["a", "b"]]
    assert render.column_width(rows, 1) == 4


def test_column_width_short_rows():
    assert render.column_width([["a"], ["a", "bb"]], 1) == 2


def test_column_width_without_rows():
    assert render.column_width([], 0) == 0


def test_is_even_table_true():
    assert render.is_even_table([["a", "b"], ["c", "d"]], 2) is True


def test_is_even_table_short_row():
    assert render.is_even_table([["a", "b"], ["c"], ["d", "e"]], 2) is False


def test_is_even_table_short_last_row():
    assert render.is_even_table([["a", "b"], ["c", "d"], ["e"]], 2) is False


def test_is_even_table_without_rows():
    assert render.is_even_table([], 2) is True


def test_pad_row_adds_cells():
    assert render.pad_row(["a"], 3) == ["a", "", ""]


def test_pad_row_adds_one():
    assert render.pad_row(["a", "b"], 3) == ["a", "b", ""]


def test_pad_row_long_enough():
    assert render.pad_row(["a", "b"], 2) == ["a", "b"]


def test_is_striped_second():
    assert render.is_striped(2) is True


def test_is_striped_not_first():
    assert render.is_striped(1) is False


def test_is_striped_not_third():
    assert render.is_striped(3) is False


def test_pages_exact():
    assert render.pages(20, 10) == 2


def test_pages_begun():
    assert render.pages(21, 10) == 3


def test_pages_without_rows():
    assert render.pages(0, 10) == 0


def test_drop_empty_rows():
    assert render.drop_empty([["a", ""], ["", ""]]) == [["a", ""]]


def test_drop_empty_keeps_full_rows():
    assert render.drop_empty([["a", "b"]]) == [["a", "b"]]


def test_up_to_total_any_case():
    rows = [["a", "1"], ["Total sum", "1"], ["b", "2"]]
    assert render.up_to_total(rows) == [["a", "1"]]


def test_up_to_total_in_first_cell():
    assert render.up_to_total([["a", "total"]]) == [["a", "total"]]


def test_up_to_total_at_the_start():
    assert render.up_to_total([["sub total", "1"]]) == [["sub total", "1"]]


def test_footer_plain():
    assert render.footer([["a", "b"], ["c", "d"]]) == "d"


def test_footer_with_note():
    assert render.footer([["a", "b"]], "new") == "b new"


def test_footer_empty_note():
    assert render.footer([["a", "b"]], "") == "b"


def test_page_start_first():
    assert render.page_start(1, 10) == 0


def test_page_start_third():
    assert render.page_start(3, 10) == 20


def test_page_start_below():
    assert render.page_start(-1, 10) == 0
