from texttable.columns import Columns


def test_add_with_width():
    columns = Columns()
    columns.add("age", 6)
    assert columns.names == ["age"]
    assert columns.widths == {"age": 6}


def test_add_without_width():
    columns = Columns()
    columns.add("age")
    assert columns.widths == {"age": 3}


def test_add_narrow_width():
    columns = Columns()
    columns.add("weight", 2)
    assert columns.widths == {"weight": 6}


def test_has_known():
    columns = Columns()
    columns.names = ["age"]
    assert columns.has("age") is True


def test_has_unknown():
    assert Columns().has("age") is False


def test_has_not_hidden():
    columns = Columns()
    columns.names = ["age"]
    columns.hidden = {"age"}
    assert columns.has("age") is False


def test_hide_known():
    columns = Columns()
    columns.names = ["age", "name", "city"]
    assert columns.hide("age") == 2
    assert columns.hidden == {"age"}


def test_hide_unknown():
    columns = Columns()
    columns.names = ["age"]
    assert columns.hide("zip") == 1
    assert columns.hidden == set()


def test_lock_open_columns():
    columns = Columns()
    assert columns.lock() is True
    assert columns.locked is True


def test_lock_again():
    columns = Columns()
    columns.locked = True
    assert columns.lock() is False


def test_shown_in_order():
    columns = Columns()
    columns.names = ["b", "x", "a"]
    columns.hidden = {"x"}
    assert columns.shown() == ["b", "a"]


def test_shown_nothing():
    columns = Columns()
    columns.names = ["x"]
    columns.hidden = {"x"}
    assert columns.shown() == []


def test_total_width_with_gaps():
    columns = Columns()
    columns.names = ["a", "b", "c"]
    columns.widths = {"a": 3, "b": 4, "c": 5}
    assert columns.total_width(2) == 16


def test_total_width_of_one():
    columns = Columns()
    columns.names = ["a"]
    columns.widths = {"a": 3}
    assert columns.total_width(2) == 3


def test_total_width_of_none():
    assert Columns().total_width(2) == 0


def test_index_first():
    columns = Columns()
    columns.names = ["a", "b"]
    assert columns.index("a") == 1


def test_index_second():
    columns = Columns()
    columns.names = ["a", "b"]
    assert columns.index("b") == 2


def test_index_unknown():
    columns = Columns()
    columns.names = ["a", "b"]
    assert columns.index("c") == 0


def test_last_of_three():
    columns = Columns()
    columns.names = ["a", "b", "c"]
    assert columns.last() == "c"


def test_last_of_none():
    assert Columns().last() is None


def test_widest_of_three():
    columns = Columns()
    columns.names = ["a", "b", "c"]
    columns.widths = {"a": 3, "b": 9, "c": 5}
    assert columns.widest() == "b"


def test_widest_of_equals():
    columns = Columns()
    columns.names = ["a", "b"]
    columns.widths = {"a": 5, "b": 5}
    assert columns.widest() == "a"


def test_match_any_case():
    columns = Columns()
    columns.names = ["net cm", "cm net", "old cm"]
    assert columns.match("CM") == ["net cm", "old cm"]


def test_match_nothing():
    columns = Columns()
    columns.names = ["age"]
    assert columns.match("a") == []


def test_narrow_wide_ones():
    columns = Columns()
    columns.names = ["a", "b", "c"]
    columns.widths = {"a": 3, "b": 9, "c": 7}
    assert columns.narrow(5) == 2
    assert columns.widths == {"a": 3, "b": 5, "c": 5}


def test_narrow_not_at_the_limit():
    columns = Columns()
    columns.names = ["a"]
    columns.widths = {"a": 5}
    assert columns.narrow(5) == 0
