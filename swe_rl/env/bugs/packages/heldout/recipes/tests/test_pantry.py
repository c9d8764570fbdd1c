from recipes.pantry import Pantry


def test_store_small_letters():
    pantry = Pantry()
    pantry.store("Rice", 500)
    assert pantry.stock == {"rice": 500}


def test_store_adds_up():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    pantry.store("rice", 500)
    assert pantry.stock == {"rice": 700}


def test_store_with_a_day():
    pantry = Pantry()
    pantry.store("milk", 900, 12)
    assert pantry.keeps == {"milk": 12}


def test_store_without_a_day():
    pantry = Pantry()
    pantry.store("milk", 900)
    assert pantry.keeps == {}


def test_take_some():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.take("rice", 50) == 50
    assert pantry.stock == {"rice": 150}


def test_take_more_than_there_is():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.take("rice", 300) == 200
    assert pantry.stock == {"rice": 0}


def test_missing_some():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.missing("rice", 300) == 100


def test_missing_nothing():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.missing("rice", 150) == 0


def test_has_exactly_enough():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.has("rice", 200) is True


def test_has_more_than_enough():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.has("rice", 100) is True


def test_has_too_little():
    pantry = Pantry()
    pantry.stock = {"rice": 200}
    assert pantry.has("rice", 201) is False


def test_has_unknown_name():
    assert Pantry().has("rice", 1) is False


def test_spoiled_after_the_day():
    pantry = Pantry()
    pantry.keeps = {"milk": 12}
    assert pantry.spoiled("milk", 13) is True


def test_spoiled_not_on_the_day():
    pantry = Pantry()
    pantry.keeps = {"milk": 12}
    assert pantry.spoiled("milk", 12) is False


def test_spoiled_never_without_day():
    assert Pantry().spoiled("salt", 99) is False


def test_next_to_spoil_earliest():
    pantry = Pantry()
    pantry.keeps = {"milk": 12, "fish": 3, "eggs": 20}
    assert pantry.next_to_spoil() == "fish"


def test_next_to_spoil_nothing():
    assert Pantry().next_to_spoil() is None


def test_find_in_front():
    pantry = Pantry()
    pantry.stock = {"rye": 1, "rice": 2, "flour": 3}
    assert pantry.find("r") == ["rice", "rye"]


def test_find_nothing():
    pantry = Pantry()
    pantry.stock = {"rice": 2}
    assert pantry.find("ce") == []


def test_is_bare_with_empty_jars():
    pantry = Pantry()
    pantry.stock = {"rice": 0, "salt": 0}
    assert pantry.is_bare() is True


def test_is_bare_at_first():
    assert Pantry().is_bare() is True


def test_is_bare_not_with_salt():
    pantry = Pantry()
    pantry.stock = {"rice": 0, "salt": 3}
    assert pantry.is_bare() is False


def test_count_low_at_the_limit():
    pantry = Pantry()
    pantry.stock = {"rice": 100, "salt": 20, "oil": 500}
    assert pantry.count_low(100) == 2


def test_count_low_none():
    pantry = Pantry()
    pantry.stock = {"rice": 100}
    assert pantry.count_low(99) == 0
