from playlist import ratings


def test_stars_text_three():
    assert ratings.stars_text(3) == "***.."


def test_stars_text_too_many():
    assert ratings.stars_text(9) == "*****"


def test_stars_text_too_few():
    assert ratings.stars_text(-1) == "....."


def test_read_stars_in_front():
    assert ratings.read_stars("***nice") == 3


def test_read_stars_not_behind():
    assert ratings.read_stars("nice**") == 0


def test_is_rating_both_ends():
    assert ratings.is_rating(1) is True
    assert ratings.is_rating(5) is True


def test_is_rating_inside():
    assert ratings.is_rating(3) is True


def test_is_rating_not_outside():
    assert ratings.is_rating(0) is False
    assert ratings.is_rating(6) is False


def test_average_in_tenths():
    assert ratings.average([5, 4, 4]) == 43


def test_average_of_nothing():
    assert ratings.average([]) == 0


def test_best_of_three():
    assert ratings.best({"sky": 3, "sea": 5, "air": 4}) == "sea"


def test_best_of_equals():
    assert ratings.best({"sky": 4, "sea": 4}) == "sea"


def test_best_of_nothing():
    assert ratings.best({}) is None


def test_is_loved_by_one():
    assert ratings.is_loved([3, 5]) is True


def test_is_loved_not_by_nobody():
    assert ratings.is_loved([3, 4]) is False


def test_is_loved_not_with_one_star():
    assert ratings.is_loved([5, 1]) is False


def test_agreed_at_the_gap():
    assert ratings.agreed([3, 5, 4], 2) is True


def test_agreed_below_the_gap():
    assert ratings.agreed([4, 5], 3) is True


def test_agreed_not_two_far_apart():
    assert ratings.agreed([1, 5], 2) is False


def test_agreed_alone():
    assert ratings.agreed([], 0) is True


def test_trend_upwards():
    assert ratings.trend([2, 1, 5]) == 3


def test_trend_downwards():
    assert ratings.trend([4, 3]) == -1


def test_trend_of_nothing():
    assert ratings.trend([]) == 0


def test_counted_without_zeros():
    assert ratings.counted([3, 0, 5, 4]) == 3


def test_counted_nothing():
    assert ratings.counted([0]) == 0


def test_keep_rated_in_order():
    table = {"sky": 4, "sea": 2, "air": 5}
    assert ratings.keep_rated(table, 3) == ["sky", "air"]


def test_keep_rated_at_the_limit():
    assert ratings.keep_rated({"sky": 3}, 3) == ["sky"]


def test_keep_rated_without_unrated():
    assert ratings.keep_rated({"sky": None, "sea": 4}, 1) == ["sea"]


def test_vote_up_one_more():
    table = {"sky": 3}
    assert ratings.vote_up(table, "sky") == 4
    assert table == {"sky": 4}


def test_vote_up_first_vote():
    assert ratings.vote_up({}, "sky") == 1


def test_vote_up_not_above():
    assert ratings.vote_up({"sky": 5}, "sky", 5) == 5


def test_is_review_long_text():
    assert ratings.is_review("it has a tune") is True


def test_is_review_with_mark():
    assert ratings.is_review("great! ") is True


def test_is_review_not_short():
    assert ratings.is_review("! so so") is False
