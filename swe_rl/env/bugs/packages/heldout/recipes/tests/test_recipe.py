from recipes.recipe import Recipe


def test_add_new_ingredient():
    dish = Recipe("soup", 2)
    assert dish.add("salt", 1) is True
    assert dish.grams == {"salt": 1}


def test_add_more_of_it():
    dish = Recipe("soup", 2)
    dish.grams = {"rice": 100}
    dish.add("rice", 50)
    assert dish.grams == {"rice": 150}


def test_add_nothing():
    dish = Recipe("soup", 2)
    assert dish.add("rice", 0) is False
    assert dish.grams == {}


def test_scaled_up():
    dish = Recipe("soup", 2)
    dish.grams = {"rice": 100, "salt": 3}
    assert dish.scaled(3) == {"rice": 150, "salt": 4}


def test_scaled_without_ingredients():
    assert Recipe("soup", 2).scaled(3) == {}


def test_weight_of_all():
    dish = Recipe("soup", 2)
    dish.grams = {"rice": 100, "salt": 3}
    assert dish.weight() == 103


def test_weight_of_nothing():
    assert Recipe("soup", 2).weight() == 0


def test_heaviest_of_three():
    dish = Recipe("soup", 2)
    dish.grams = {"salt": 3, "rice": 100, "oil": 20}
    assert dish.heaviest() == "rice"


def test_heaviest_of_equals():
    dish = Recipe("soup", 2)
    dish.grams = {"rice": 50, "oil": 50}
    assert dish.heaviest() == "rice"


def test_heaviest_of_nothing():
    assert Recipe("soup", 2).heaviest() is None


def test_uses_any_of_two():
    dish = Recipe("soup", 2)
    dish.grams = {"rice": 50}
    assert dish.uses_any(["nuts", "rice"]) is True


def test_uses_any_not():
    dish = Recipe("soup", 2)
    dish.grams = {"rice": 50}
    assert dish.uses_any(["nuts", "milk"]) is False


def test_uses_any_of_no_names():
    assert Recipe("soup", 2).uses_any([]) is False


def test_left_over_portions():
    assert Recipe("soup", 8).left_over(3) == 2


def test_left_over_for_one_guest():
    assert Recipe("soup", 8).left_over(1) == 0


def test_left_over_without_guests():
    assert Recipe("soup", 8).left_over(0) == 8


def test_final_step_of_two():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5), ("boil", 20)]
    assert dish.final_step() == "boil"


def test_final_step_without_steps():
    assert Recipe("soup", 2).final_step() is None


def test_step_text_first():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5), ("fry", 9), ("boil", 20)]
    assert dish.step_text(1) == "chop"


def test_step_text_final():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5), ("boil", 20)]
    assert dish.step_text(2) == "boil"


def test_step_text_behind():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5)]
    assert dish.step_text(2) is None


def test_minutes_of_steps():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5), ("boil", 20)]
    assert dish.minutes() == 25


def test_minutes_with_extra():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5)]
    assert dish.minutes(10) == 15


def test_minutes_never_negative():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5)]
    assert dish.minutes(-9) == 0


def test_is_quick_at_the_limit():
    dish = Recipe("soup", 2)
    dish.steps = [("boil", 20)]
    assert dish.is_quick(20) is True


def test_is_quick_below_the_limit():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5), ("boil", 20)]
    assert dish.is_quick(30) is True


def test_is_quick_too_long():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5), ("boil", 20)]
    assert dish.is_quick(24) is False


def test_is_quick_without_steps():
    assert Recipe("soup", 2).is_quick(10) is False


def test_long_steps_in_order():
    dish = Recipe("soup", 2)
    dish.steps = [("boil", 20), ("chop", 5), ("bake", 40)]
    assert dish.long_steps(10) == ["boil", "bake"]


def test_long_steps_at_the_limit():
    dish = Recipe("soup", 2)
    dish.steps = [("chop", 5)]
    assert dish.long_steps(5) == ["chop"]
