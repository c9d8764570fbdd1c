from routes.paths import all_connected
from routes.paths import detour_km
from routes.paths import fewest_roads
from routes.paths import is_loop
from routes.paths import path_km
from routes.paths import push_neighbours
from routes.paths import reachable
from routes.paths import repeats_place
from routes.paths import shortest_km
from routes.paths import turn_back
from routes.paths import way_count

ROADS = {"A": {"B": 2, "C": 9}, "B": {"C": 3}, "C": {"D": 1}, "D": {}}


def test_shortest_km_prefers_the_short_way():
    assert shortest_km(ROADS, "A", "C") == 5
    assert shortest_km(ROADS, "A", "D") == 6


def test_shortest_km_to_itself():
    assert shortest_km(ROADS, "A", "A") == 0


def test_shortest_km_unreachable():
    assert shortest_km(ROADS, "D", "A") is None


def test_push_neighbours_adds_the_way():
    heap = []
    push_neighbours(heap, {"A": {"B": 2}}, 5, "A", set())
    assert heap == [(7, "B")]


def test_push_neighbours_skips_done():
    heap = []
    push_neighbours(heap, {"A": {"B": 2, "C": 3}}, 5, "A", {"B"})
    assert heap == [(8, "C")]


def test_reachable_follows_roads():
    assert reachable(ROADS, "B") == {"B", "C", "D"}


def test_reachable_includes_the_start():
    assert reachable(ROADS, "D") == {"D"}


def test_fewest_roads_counts():
    assert fewest_roads(ROADS, "A", "C") == 1
    assert fewest_roads(ROADS, "A", "D") == 2


def test_fewest_roads_to_itself():
    assert fewest_roads(ROADS, "A", "A") == 0


def test_fewest_roads_unreachable():
    assert fewest_roads(ROADS, "D", "A") is None


def test_path_km_adds_up():
    assert path_km(ROADS, ["A", "B", "C"]) == 5


def test_path_km_missing_road():
    assert path_km(ROADS, ["A", "D"]) is None


def test_path_km_of_one_place():
    assert path_km(ROADS, ["A"]) == 0


def test_is_loop_back_at_the_start():
    assert is_loop(["A", "B", "A"])
    assert is_loop(["A", "A"])


def test_is_loop_not_when_elsewhere():
    assert not is_loop(["A", "B", "C"])


def test_is_loop_not_for_one_place():
    assert is_loop(["A"]) is False


def test_repeats_place_true():
    assert repeats_place(["A", "B", "A"])


def test_repeats_place_false():
    assert not repeats_place(["A", "B"])


def test_detour_km_longer():
    assert detour_km(10, 14) == 4


def test_detour_km_shorter():
    assert detour_km(10, 8) == 0


def test_turn_back_names_the_far_end_once():
    assert turn_back(["A", "B", "C"]) == ["A", "B", "C", "B", "A"]


def test_turn_back_of_nothing():
    assert turn_back([]) == []


def test_turn_back_of_one_place():
    assert turn_back(["A"]) == ["A"]


def test_all_connected_in_a_ring():
    assert all_connected({"A": {"B": 1}, "B": {"A": 1}})


def test_all_connected_not_one_way():
    assert not all_connected({"A": {"B": 1}, "B": {}})


def test_all_connected_of_nothing():
    assert all_connected({}) is True


def test_way_count_multiplies():
    assert way_count([3, 2, 4]) == 24


def test_way_count_skips_forks_without_choice():
    assert way_count([3, 1, 0, 2]) == 6


def test_way_count_of_two():
    assert way_count([2]) == 2


def test_way_count_without_forks():
    assert way_count([]) == 1
