from recipes import amounts


def test_parse_unit_small_letters():
    assert amounts.parse_unit(" Gram ") == "gram"


def test_parse_unit_plural():
    assert amounts.parse_unit("cups") == "cup"


def test_parse_unit_starts_with_s():
    assert amounts.parse_unit("stick") == "stick"


def test_parse_unit_lone_letter():
    assert amounts.parse_unit("s") == "s"


def test_spoons_to_grams_level():
    assert amounts.spoons_to_grams(2) == 30


def test_spoons_to_grams_heaped():
    assert amounts.spoons_to_grams(2, heaped=True) == 44


def test_split_packs_with_rest():
    assert amounts.split_packs(1100, 500) == (2, 100)


def test_split_packs_of_one_gram():
    assert amounts.split_packs(3, 1) == (3, 0)


def test_split_packs_without_pack():
    assert amounts.split_packs(30, 0) == (0, 30)


def test_round_up_to_step():
    assert amounts.round_up(101, 25) == 125


def test_round_up_exact():
    assert amounts.round_up(75, 25) == 75


def test_is_countable_small_piece():
    assert amounts.is_countable("Half-Piece") is True


def test_is_countable_slice():
    assert amounts.is_countable("Slice") is True


def test_is_countable_not_grams():
    assert amounts.is_countable("gram") is False


def test_clamp_too_much():
    assert amounts.clamp(90, 10, 50) == 50


def test_clamp_too_little():
    assert amounts.clamp(3, 10, 50) == 10


def test_clamp_between():
    assert amounts.clamp(30, 10, 50) == 30


def test_leading_number_in_front():
    assert amounts.leading_number("12 eggs") == 12


def test_leading_number_missing():
    assert amounts.leading_number("eggs 3") == 1


def test_leading_number_of_nothing():
    assert amounts.leading_number("") == 1


def test_unit_word_of_two():
    assert amounts.unit_word("2 cups") == "cups"


def test_unit_word_of_three():
    assert amounts.unit_word("3 big cups") == "cups"


def test_unit_word_alone():
    assert amounts.unit_word("salt") is None
