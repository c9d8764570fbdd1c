from texttable import align


def test_left_fills_up():
    assert align.left("ab", 4) == "ab  "


def test_left_too_long():
    assert align.left("abcd", 2) == "abcd"


def test_right_fills_up():
    assert align.right("ab", 4) == "  ab"


def test_right_by_one():
    assert align.right("ab", 3) == " ab"


def test_right_too_long():
    assert align.right("abcd", 2) == "abcd"


def test_centre_even_gap():
    assert align.centre("ab", 6) == "  ab  "


def test_centre_odd_gap():
    assert align.centre("ab", 5) == " ab  "


def test_centre_too_long():
    assert align.centre("abcd", 3) == "abcd"


def test_cut_long_text():
    assert align.cut("abcdef", 4) == "abc."


def test_cut_exact():
    assert align.cut("abcd", 4) == "abcd"


def test_cut_short_text():
    assert align.cut("ab", 4) == "ab"


def test_fits_every_text():
    assert align.fits(["a", "abc"], 3) is True


def test_fits_not_every_text():
    assert align.fits(["a", "abcd"], 3) is False


def test_fits_without_texts():
    assert align.fits([], 0) is True


def test_overflows_one_text():
    assert align.overflows(["abc", "abcd"], 3) is True


def test_overflows_not_at_the_width():
    assert align.overflows(["abc"], 3) is False


def test_overflows_without_texts():
    assert align.overflows([], 0) is False


def test_wrap_words_two_lines():
    assert align.wrap_words("one two six", 7) == ["one two", "six"]


def test_wrap_words_one_too_wide():
    assert align.wrap_words("one two", 6) == ["one", "two"]


def test_wrap_words_long_word():
    assert align.wrap_words("elephant", 3) == ["elephant"]


def test_wrap_words_nothing():
    assert align.wrap_words("", 5) == [""]


def test_side_of_right():
    assert align.side_of("Right") == "r"


def test_side_of_centre():
    assert align.side_of("c") == "c"


def test_side_of_others():
    assert align.side_of("top") == "l"
    assert align.side_of("") == "l"


def test_tab_gap_inside():
    assert align.tab_gap(5, 4) == 3


def test_tab_gap_on_a_stop():
    assert align.tab_gap(8, 4) == 4


def test_point_place_inside():
    assert align.point_place("12.50") == 2


def test_point_place_in_front():
    assert align.point_place(".5") == 0


def test_point_place_missing():
    assert align.point_place("125") == 3


def test_indent_two_steps():
    assert align.indent("ab", 2) == "    ab"


def test_indent_drops_old_spaces():
    assert align.indent("   ab ", 1) == "  ab "


def test_indent_not_negative():
    assert align.indent("ab", -3) == "ab"
