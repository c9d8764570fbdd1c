from gridgame import score


def test_piece_value_any_case():
    assert score.piece_value("Rook") == 5


def test_piece_value_unknown():
    assert score.piece_value("dog") == 0


def test_sum_of_pieces():
    assert score.sum_of(["rook", "pawn", "dog"]) == 7


def test_sum_of_leaves_doubtful_out():
    assert score.sum_of(["rook", "queen?", "pawn"]) == 6


def test_sum_of_nothing():
    assert score.sum_of([]) == 0


def test_line_points_of_three():
    assert score.line_points(3) == 30


def test_line_points_of_five():
    assert score.line_points(5) == 50


def test_line_points_too_short():
    assert score.line_points(2) == 0


def test_with_bonus_for_few_turns():
    assert score.with_bonus(50, 15) == 55


def test_with_bonus_for_many_turns():
    assert score.with_bonus(50, 25) == 50


def test_with_bonus_without_turns():
    assert score.with_bonus(50) == 50


def test_leader_of_three():
    assert score.leader({"ann": 3, "bob": 9, "cid": 5}) == "bob"


def test_leader_alone():
    assert score.leader({"ann": 3}) == "ann"


def test_leader_of_nobody():
    assert score.leader({}) is None


def test_is_tie_all_equal():
    assert score.is_tie({"ann": 3, "bob": 3}) is True


def test_is_tie_one_differs():
    assert score.is_tie({"ann": 3, "bob": 3, "cid": 5}) is False


def test_is_tie_not_alone():
    assert score.is_tie({"ann": 3}) is False


def test_rivals_in_order():
    assert score.rivals(["cid", "bob", "ann"], "bob") == ["cid", "ann"]


def test_rivals_of_one_alone():
    assert score.rivals(["bob"], "bob") == []


def test_rank_best():
    assert score.rank({"ann": 3, "bob": 9}, "bob") == 1


def test_rank_shared():
    assert score.rank({"ann": 3, "bob": 9, "cid": 3}, "cid") == 2


def test_rank_last():
    assert score.rank({"ann": 3, "bob": 9, "cid": 5}, "ann") == 3


def test_has_won_at_the_goal():
    assert score.has_won(50, 50, [49, 10]) is True


def test_has_won_above_the_goal():
    assert score.has_won(60, 50, [10]) is True


def test_has_won_not_with_a_rival():
    assert score.has_won(60, 50, [60, 10]) is False


def test_has_won_not_below_the_goal():
    assert score.has_won(49, 50, [10]) is False


def test_streak_since_a_loss():
    assert score.streak([True, False, True, True]) == 2


def test_streak_after_a_loss():
    assert score.streak([True, False]) == 0


def test_streak_of_all():
    assert score.streak([True, True, True]) == 3


def test_level_first():
    assert score.level(99) == 1


def test_level_in_between():
    assert score.level(250) == 3


def test_level_last():
    assert score.level(1500) == 9
