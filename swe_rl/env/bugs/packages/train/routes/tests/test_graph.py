from routes.graph import Graph


def test_add_place_once():
    graph = Graph()
    assert graph.add_place("A") is True
    assert graph.roads == {"A": {}}


def test_add_place_known():
    graph = Graph()
    graph.roads["A"] = {"B": 2}
    assert graph.add_place("A") is False
    assert graph.roads["A"] == {"B": 2}


def test_add_road_both_ways():
    graph = Graph()
    assert graph.add_road("A", "B", 1) is True
    assert graph.roads == {"A": {"B": 1}, "B": {"A": 1}}


def test_add_road_one_way():
    graph = Graph()
    graph.add_road("A", "B", 5, one_way=True)
    assert graph.roads == {"A": {"B": 5}, "B": {}}


def test_add_road_needs_a_length():
    graph = Graph()
    assert graph.add_road("A", "B", 0) is False
    assert graph.roads == {}


def test_add_road_needs_two_places():
    graph = Graph()
    assert graph.add_road("A", "A", 3) is False


def test_neighbours_are_sorted():
    graph = Graph()
    graph.roads = {"A": {"C": 1, "B": 2}}
    assert graph.neighbours("A") == ["B", "C"]


def test_neighbours_of_an_unknown_place():
    assert Graph().neighbours("A") == []


def test_distance_of_a_road():
    graph = Graph()
    graph.roads = {"A": {"B": 7}}
    assert graph.distance("A", "B") == 7
    assert graph.distance("B", "A") is None


def test_distance_to_itself():
    assert Graph().distance("A", "A") == 0


def test_has_road_known():
    graph = Graph()
    graph.roads = {"A": {"B": 7}, "B": {}}
    assert graph.has_road("A", "B") is True


def test_has_road_other_direction():
    graph = Graph()
    graph.roads = {"A": {"B": 7}, "B": {}}
    assert graph.has_road("B", "A") is False


def test_has_road_unknown_place():
    assert Graph().has_road("A", "B") is False


def test_is_one_way_true():
    graph = Graph()
    graph.roads = {"A": {"B": 7}, "B": {}}
    assert graph.is_one_way("A", "B")
    assert not graph.is_one_way("B", "A")


def test_is_one_way_not_for_both():
    graph = Graph()
    graph.roads = {"A": {"B": 7}, "B": {"A": 7}}
    assert not graph.is_one_way("A", "B")


def test_is_one_way_not_without_road():
    assert not Graph().is_one_way("A", "B")


def test_dead_ends_have_one_neighbour():
    graph = Graph()
    graph.roads = {"C": {"B": 1}, "A": {"B": 1}, "B": {"A": 1, "C": 1}}
    assert graph.dead_ends() == ["A", "C"]


def test_dead_ends_without_neighbours():
    graph = Graph()
    graph.roads = {"A": {}}
    assert graph.dead_ends() == ["A"]


def test_nearest_neighbour():
    graph = Graph()
    graph.roads = {"A": {"B": 5, "C": 3, "D": 4}}
    assert graph.nearest("A") == "C"


def test_nearest_of_equals():
    graph = Graph()
    graph.roads = {"A": {"C": 5, "B": 5}}
    assert graph.nearest("A") == "B"


def test_nearest_of_nothing():
    assert Graph().nearest("A") is None


def test_longest_road_of_all():
    graph = Graph()
    graph.roads = {"A": {"B": 5, "C": 9}, "B": {"A": 5}}
    assert graph.longest_road() == 9


def test_longest_road_without_roads():
    assert Graph().longest_road() == 0


def test_remove_road_closes_one_direction():
    graph = Graph()
    graph.roads = {"A": {"B": 5}, "B": {"A": 5}}
    assert graph.remove_road("A", "B") is True
    assert graph.roads == {"A": {}, "B": {"A": 5}}


def test_remove_road_unknown():
    graph = Graph()
    graph.roads = {"A": {"B": 5}}
    assert graph.remove_road("A", "C") is False
