from recipes import shopping


def test_clean_line_bullet():
    assert shopping.clean_line("- rice") == "rice"


def test_clean_line_keeps_the_end():
    assert shopping.clean_line("* rice *") == "rice *"


def test_drop_notes_at_the_end():
    assert shopping.drop_notes("milk!?") == "milk"


def test_drop_notes_keeps_the_front():
    assert shopping.drop_notes("!milk") == "!milk"


def test_merge_adds_up():
    assert shopping.merge({"rice": 5}, {"rice": 2}) == {"rice": 7}


def test_merge_new_names():
    assert shopping.merge({"oil": 5}, {"salt": 0}) == {"oil": 5, "salt": 0}


def test_merge_leaves_the_first_alone():
    first = {"rice": 5}
    shopping.merge(first, {"rice": 0})
    assert first == {"rice": 5}


def test_packs_needed_exact():
    assert shopping.packs_needed(1000, 500) == 2


def test_packs_needed_one_more():
    assert shopping.packs_needed(1001, 500) == 3


def test_packs_needed_for_one_gram():
    assert shopping.packs_needed(1, 500) == 1


def test_packs_needed_for_nothing():
    assert shopping.packs_needed(0, 500) == 0


def test_packs_needed_below_nothing():
    assert shopping.packs_needed(-2000, 500) == 0


def test_without_done_lines():
    assert shopping.without(["a", "b", "c"], ["b"]) == ["a", "c"]


def test_without_anything_done():
    assert shopping.without(["b", "a"], []) == ["b", "a"]


def test_changed_amounts():
    assert shopping.changed({"a": 1, "b": 2}, {"a": 3, "b": 2}) == ["a"]


def test_changed_new_name():
    assert shopping.changed({}, {"a": 3, "b": 0}) == ["a"]


def test_is_optional_question():
    assert shopping.is_optional("Cake? ") is True


def test_is_optional_maybe():
    assert shopping.is_optional("Maybe cake") is True


def test_is_optional_not():
    assert shopping.is_optional("cake") is False


def test_any_dear_one_of_three():
    assert shopping.any_dear([30, 10, 20], 25) is True


def test_any_dear_at_the_limit():
    assert shopping.any_dear([30, 10, 20], 30) is False


def test_any_dear_of_nothing():
    assert shopping.any_dear([], 5) is False


def test_budget_left_after_all():
    assert shopping.budget_left(50, [20, 10]) == 20


def test_budget_left_stops_at_dear_line():
    assert shopping.budget_left(50, [20, 40, 10]) == 30


def test_budget_left_exact():
    assert shopping.budget_left(50, [50]) == 0


def test_all_priced_true():
    assert shopping.all_priced(["a", "b"], {"a": 1, "b": 0}) is True


def test_all_priced_one_missing():
    assert shopping.all_priced(["a", "b"], {"a": 1}) is False


def test_heading_of_one():
    assert shopping.heading("# Fruit", 1) == "FRUIT"


def test_heading_of_two():
    assert shopping.heading("Fruit #", 2) == "FRUIT # (2)"


def test_heading_of_many():
    assert shopping.heading("Fruit", 12) == "FRUIT (12)"
