from textkit.marks import balanced
from textkit.marks import column_width
from textkit.marks import has_heading
from textkit.marks import heading_level
from textkit.marks import heading_text
from textkit.marks import is_item
from textkit.marks import last_heading
from textkit.marks import number_items
from textkit.marks import quote
from textkit.marks import reading_minutes
from textkit.marks import rule
from textkit.marks import strip_comment
from textkit.marks import unquote


def test_heading_level_counts():
    assert heading_level("## Title") == 2
    assert heading_level("###### Title") == 6


def test_heading_level_too_deep():
    assert heading_level("####### Title") == 0


def test_heading_level_needs_a_space():
    assert heading_level("#tag ") == 0


def test_heading_text_of_a_heading():
    assert heading_text("## Title") == "Title"


def test_heading_text_of_other_lines():
    assert heading_text("Title") is None


def test_is_item_dash():
    assert is_item("- milk")


def test_is_item_star():
    assert is_item("  * milk")


def test_is_item_not_others():
    assert not is_item("milk - ")
    assert not is_item("milk * ")


def test_quote_marks_lines():
    assert quote(["a", "b"]) == ["> a", "> b"]


def test_quote_blank_lines():
    assert quote(["a", "", "b"]) == ["> a", ">", "> b"]


def test_unquote_takes_one_mark():
    assert unquote("> > a ") == "> a "


def test_unquote_leaves_others():
    assert unquote("a >") == "a >"


def test_balanced_nested():
    assert balanced("(a(b)c)")


def test_balanced_open():
    assert not balanced("((a)")


def test_balanced_wrong_order():
    assert balanced(")(") is False


def test_balanced_without_brackets():
    assert balanced("abc")


def test_last_heading_of_several():
    assert last_heading(["# A", "text", "## B", "text"]) == "B"


def test_last_heading_none():
    assert last_heading(["text"]) is None


def test_number_items_from_one():
    assert number_items(["a", "b"]) == ["1. a", "2. b"]


def test_number_items_from_another():
    assert number_items(["a", "b"], 5) == ["5. a", "6. b"]


def test_strip_comment_at_the_end():
    assert strip_comment(" a = 2  ; two ; more") == " a = 2"


def test_strip_comment_without_one():
    assert strip_comment("a = 2") == "a = 2"


def test_has_heading_one_is_enough():
    assert has_heading(["text", "# A"])


def test_has_heading_none():
    assert not has_heading(["text"])
    assert not has_heading([])


def test_column_width_of_the_longest():
    assert column_width(["a", "abcde"]) == 7


def test_column_width_least():
    assert column_width(["a"]) == 5


def test_column_width_without_cells():
    assert column_width([]) == 3


def test_reading_minutes_rounds_down():
    assert reading_minutes(950) == 4


def test_reading_minutes_at_least_one():
    assert reading_minutes(20) == 1


def test_rule_of_dashes():
    assert rule(4) == "----"


def test_rule_of_another_character():
    assert rule(3, "=") == "==="
