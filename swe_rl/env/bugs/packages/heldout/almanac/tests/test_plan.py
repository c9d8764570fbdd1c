from almanac.plan import Plan


def test_add_new_title():
    plan = Plan()
    assert plan.add(3, "tea") is True
    assert plan.entries == {3: ["tea"]}


def test_add_same_title():
    plan = Plan()
    plan.entries = {3: ["tea"]}
    assert plan.add(3, "tea") is False
    assert plan.entries == {3: ["tea"]}


def test_first_day_earliest():
    plan = Plan()
    plan.entries = {9: ["tea"], 4: ["run"], 6: ["cook"]}
    assert plan.first_day() == 4


def test_first_day_of_empty_plan():
    assert Plan().first_day() is None


def test_final_title_of_two():
    plan = Plan()
    plan.entries = {3: ["tea", "run"]}
    assert plan.final_title(3) == "run"


def test_final_title_of_free_day():
    assert Plan().final_title(3) is None


def test_between_days():
    plan = Plan()
    plan.entries = {2: [], 9: [], 5: []}
    assert plan.between(3, 8) == [5]


def test_between_both_ends():
    plan = Plan()
    plan.entries = {9: [], 2: [], 5: []}
    assert plan.between(2, 9) == [2, 5, 9]


def test_finish_first_time():
    plan = Plan()
    assert plan.finish("tea") is False
    assert plan.done == {"tea"}


def test_finish_again():
    plan = Plan()
    plan.done = {"tea"}
    assert plan.finish("tea") is True


def test_open_titles_in_order():
    plan = Plan()
    plan.entries = {3: ["tea", "cook", "run"]}
    plan.done = {"cook"}
    assert plan.open_titles(3) == ["tea", "run"]


def test_open_titles_of_free_day():
    assert Plan().open_titles(3) == []


def test_is_free_without_entry():
    assert Plan().is_free(3) is True


def test_is_free_not_with_entry():
    plan = Plan()
    plan.entries = {3: ["tea"]}
    assert plan.is_free(3) is False


def test_is_free_not_when_closed():
    plan = Plan()
    plan.closed = True
    assert plan.is_free(3) is False


def test_all_done_true():
    plan = Plan()
    plan.entries = {3: ["tea", "run"]}
    plan.done = {"tea", "run"}
    assert plan.all_done(3) is True


def test_all_done_not_with_one_open():
    plan = Plan()
    plan.entries = {3: ["tea", "run"]}
    plan.done = {"tea"}
    assert plan.all_done(3) is False


def test_busiest_of_three():
    plan = Plan()
    plan.entries = {1: ["a"], 2: ["a", "b", "c"], 3: ["a", "b"]}
    assert plan.busiest() == 2


def test_busiest_of_equals():
    plan = Plan()
    plan.entries = {7: ["a"], 2: ["b"]}
    assert plan.busiest() == 2


def test_busiest_of_empty_plan():
    assert Plan().busiest() is None


def test_close_sets_the_flag():
    plan = Plan()
    assert plan.close() == "CLOSED"
    assert plan.closed is True


def test_close_with_reason():
    assert Plan().close("Rain") == "RAIN"


def test_find_any_case():
    plan = Plan()
    plan.entries = {3: ["cook"], 1: ["run", "Tea time"]}
    assert plan.find("tea") == [1]


def test_find_not_behind():
    plan = Plan()
    plan.entries = {3: ["green tea"]}
    assert plan.find("tea") == []
