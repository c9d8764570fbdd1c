from orchard.trees import Tree
from orchard.trees import free_places
from orchard.trees import growth_stage
from orchard.trees import lacks_pollinator
from orchard.trees import oldest_tree
from orchard.trees import place_of
from orchard.trees import tag_text
from orchard.trees import trees_in_row


def test_is_bearing_from_the_fourth_year():
    assert Tree("cox", 4, False, None).is_bearing()
    assert not Tree("cox", 3, False, None).is_bearing()


def test_is_bearing_not_when_sick():
    assert not Tree("cox", 9, True, None).is_bearing()


def test_is_bearing_not_when_young_and_sick():
    assert not Tree("cox", 2, True, None).is_bearing()


def test_needs_stake_when_young():
    assert Tree("cox", 2, False, None).needs_stake() is True


def test_needs_stake_not_without_graft():
    assert Tree("cox", 3, False, None).needs_stake() is False


def test_needs_stake_on_dwarf_stock():
    assert Tree("cox", 8, False, "M26").needs_stake() is True


def test_needs_stake_not_on_strong_stock():
    assert Tree("cox", 8, False, "a2").needs_stake() is False


def test_expected_kilos_none_when_young():
    assert Tree("cox", 3, False, None).expected_kilos() == 0
    assert Tree("cox", 1, False, None).expected_kilos() == 0


def test_expected_kilos_first_bearing_year():
    assert Tree("cox", 4, False, None).expected_kilos() == 6


def test_expected_kilos_grow_with_age():
    assert Tree("cox", 10, False, None).expected_kilos() == 42


def test_expected_kilos_are_limited():
    assert Tree("cox", 40, False, None).expected_kilos() == 90


def test_growth_stage_seedling():
    assert growth_stage(0) == "seedling"


def test_growth_stage_grown():
    assert growth_stage(1) == "grown"
    assert growth_stage(25) == "grown"


def test_growth_stage_veteran():
    assert growth_stage(26) == "veteran"


def test_trees_in_row_counts_both_ends():
    assert trees_in_row(12, 4) == 4


def test_trees_in_row_drops_the_rest():
    assert trees_in_row(11, 4) == 3


def test_trees_in_row_of_no_length():
    assert trees_in_row(0, 4) == 1


def test_trees_in_row_of_negative_length():
    assert trees_in_row(-1, 4) == 0


def test_place_of_later_rows():
    assert place_of(18, 5) == (3, 2)


def test_place_of_first_tree():
    assert place_of(1, 5) == (0, 0)


def test_place_of_row_end():
    assert place_of(10, 5) == (1, 4)


def test_oldest_tree_finds_it():
    trees = [Tree("cox", 3, False, None), Tree("gala", 8, False, None)]
    assert oldest_tree(trees).kind == "gala"


def test_oldest_tree_keeps_an_earlier_one():
    trees = [Tree("gala", 8, False, None), Tree("cox", 3, False, None)]
    assert oldest_tree(trees).kind == "gala"


def test_oldest_tree_first_of_equals():
    trees = [Tree("cox", 5, False, None), Tree("gala", 5, False, None)]
    assert oldest_tree(trees).kind == "cox"


def test_oldest_tree_of_none():
    assert oldest_tree([]) is None


def test_free_places_counts_the_gaps():
    assert free_places([None, "cox", None]) == 2


def test_free_places_stops_at_the_fence():
    assert free_places(["cox", None, "fence", None, None]) == 1


def test_free_places_of_an_empty_row():
    assert free_places([]) == 0


def test_lacks_pollinator_with_one_kind():
    assert lacks_pollinator(["Cox", "cox", "COX"]) is True


def test_lacks_pollinator_not_with_two_kinds():
    assert lacks_pollinator(["cox", "gala", "cox"]) is False


def test_lacks_pollinator_when_the_other_kind_is_far():
    assert lacks_pollinator(["cox", "cox", "cox", "gala"]) is True


def test_tag_text_first_word_in_capitals():
    assert tag_text("cox orange", 7) == "COX #7"


def test_tag_text_drops_stars_in_front():
    assert tag_text("* cox* orange", 7) == "COX* #7"


def test_tag_text_of_one_word():
    assert tag_text("Gala", 12) == "GALA #12"
