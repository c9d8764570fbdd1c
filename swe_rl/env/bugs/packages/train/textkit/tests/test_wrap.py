from textkit.wrap import align_right
from textkit.wrap import center
from textkit.wrap import drop_blank_ends
from textkit.wrap import first_paragraph
from textkit.wrap import fits
from textkit.wrap import indent_depth
from textkit.wrap import is_aligned
from textkit.wrap import line_count
from textkit.wrap import shorten
from textkit.wrap import widest
from textkit.wrap import wrap_lines


def test_wrap_lines_fills():
    assert wrap_lines("aa bb cc", 7) == ["aa bb", "cc"]


def test_wrap_lines_exact_width():
    assert wrap_lines("aa bb", 5) == ["aa bb"]
    assert wrap_lines("aa bb", 4) == ["aa", "bb"]


def test_wrap_lines_adds_to_the_last_line():
    assert wrap_lines("aaaa b c", 4) == ["aaaa", "b c"]


def test_wrap_lines_of_nothing():
    assert wrap_lines("", 5) == []


def test_shorten_not_needed():
    assert shorten("abcdef", 6) == "abcdef"


def test_shorten_marks_with_dots():
    assert shorten("abcdefgh", 6) == "abc..."


def test_shorten_drops_a_space_before_dots():
    assert shorten(" a bcdefgh", 6) == " a..."


def test_shorten_narrow():
    assert shorten("abcdef", 2) == "..."


def test_center_even():
    assert center("ab", 6) == "  ab"


def test_center_odd():
    assert center("ab", 5) == " ab"


def test_center_one_pair_of_spaces():
    assert center("ab", 4) == " ab"


def test_center_without_room():
    assert center("abcd", 2) == "abcd"


def test_align_right_fills_with_dots():
    assert align_right("12", 5) == ".. 12"


def test_align_right_one_place():
    assert align_right("12", 3) == " 12"


def test_align_right_without_room():
    assert align_right("1234", 3) == "1234"


def test_indent_depth_whole_steps():
    assert indent_depth("        x  ") == 2


def test_indent_depth_rest():
    assert indent_depth("      x") == 1


def test_is_aligned_multiple():
    assert is_aligned("    x ")
    assert is_aligned("        x")


def test_is_aligned_rest():
    assert not is_aligned("     x")


def test_is_aligned_blank():
    assert is_aligned("   ") is True


def test_drop_blank_ends_both():
    assert drop_blank_ends(["", " ", "a", "b", ""]) == ["a", "b"]


def test_drop_blank_ends_at_the_end():
    assert drop_blank_ends(["a", "b", ""]) == ["a", "b"]


def test_drop_blank_ends_keeps_inner():
    assert drop_blank_ends(["a", "", "b"]) == ["a", "", "b"]


def test_drop_blank_ends_all_blank():
    assert drop_blank_ends(["", "", ""]) == []


def test_line_count_of_long_lines():
    assert line_count("abcdef", 3) == 2
    assert line_count("abcdefg", 3) == 3


def test_line_count_of_blank_lines():
    assert line_count("a\n\nb", 5) == 3


def test_widest_of_several():
    assert widest(["a", "abc", "ab"]) == 3


def test_widest_of_nothing():
    assert widest([]) == 0


def test_fits_exactly():
    assert fits(["abc", "a"], 3)


def test_fits_not_when_one_is_longer():
    assert not fits(["abcd", "a"], 3)


def test_first_paragraph_until_blank():
    assert first_paragraph(["a", "b", "", "c"]) == ["a", "b"]


def test_first_paragraph_without_blank():
    assert first_paragraph(["a", "b"]) == ["a", "b"]
