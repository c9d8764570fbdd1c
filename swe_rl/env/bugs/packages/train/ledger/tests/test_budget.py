from ledger.budget import carry_over
from ledger.budget import instalment
from ledger.budget import largest_post
from ledger.budget import limit_or_default
from ledger.budget import monthly_share
from ledger.budget import months_left
from ledger.budget import needs_review
from ledger.budget import on_track
from ledger.budget import overspent
from ledger.budget import post_rank
from ledger.budget import remaining
from ledger.budget import used_percent
from ledger.budget import warning_level
from ledger.budget import yearly_total
from ledger.budget import years_to_save


def test_monthly_share_rounds_down():
    assert monthly_share(1210) == 100


def test_monthly_share_of_zero():
    assert monthly_share(11) == 0


def test_yearly_total_of_months():
    assert yearly_total(100) == 1200


def test_yearly_total_with_bonus():
    assert yearly_total(100, 50) == 1250


def test_remaining_of_each_post():
    assert remaining({"tea": 50, "rent": 900}, {"tea": 20}) == {
        "tea": 30,
        "rent": 900,
    }


def test_remaining_may_be_negative():
    assert remaining({"tea": 50}, {"tea": 70}) == {"tea": -20}


def test_overspent_above_the_plan():
    assert overspent({"tea": 50, "rent": 9}, {"tea": 51, "rent": 8}) == ["tea"]


def test_overspent_not_at_the_plan():
    assert overspent({"tea": 50}, {"tea": 50}) == []


def test_overspent_unplanned():
    assert overspent({}, {"tea": 1}) == ["tea"]


def test_used_percent_of_a_part():
    assert used_percent(300, 100) == 33


def test_used_percent_of_an_empty_plan():
    assert used_percent(0, 5) == 100


def test_warning_level_fine():
    assert warning_level(79) == "fine"


def test_warning_level_close():
    assert warning_level(80) == "close"
    assert warning_level(100) == "close"


def test_warning_level_over():
    assert warning_level(101) == "over"


def test_on_track_all():
    assert on_track([10, 79])


def test_on_track_not_with_one_close():
    assert not on_track([10, 80])


def test_needs_review_one_is_enough():
    assert needs_review([10, 101])


def test_needs_review_none():
    assert not needs_review([10, 100])
    assert not needs_review([])


def test_largest_post_costs_most():
    assert largest_post({"tea": 5, "rent": 900, "salt": 2}) == "rent"


def test_largest_post_of_nothing():
    assert largest_post({}) is None


def test_months_left_whole():
    assert months_left(1000, 300) == 3
    assert months_left(5, 1) == 5


def test_months_left_without_costs():
    assert months_left(1000, 0) == 0


def test_carry_over_up_to_the_cap():
    assert carry_over(500, 300) == 300
    assert carry_over(200, 300) == 200


def test_carry_over_not_allowed():
    assert carry_over(500, 300, allowed=False) == 0


def test_carry_over_debts():
    assert carry_over(-50, 300, allowed=False) == -50


def test_carry_over_below_the_cap_of_zero():
    assert carry_over(0, -5) == -5


def test_instalment_first_ones_take_the_rest():
    assert [instalment(11, 3, number) for number in (1, 2, 3)] == [4, 4, 3]


def test_instalment_equal():
    assert instalment(12, 3, 1) == 4


def test_years_to_save_exact():
    assert years_to_save(300, [100, 100, 100, 100]) == 3


def test_years_to_save_in_the_first_year():
    assert years_to_save(50, [100, 100]) == 1


def test_years_to_save_with_a_rest():
    assert years_to_save(201, [100, 100, 100]) == 3


def test_years_to_save_never():
    assert years_to_save(201, [100, 100]) == 0


def test_limit_or_default_given():
    assert limit_or_default(0, 50) == 0


def test_limit_or_default_missing():
    assert limit_or_default(None, 50) == 50


def test_post_rank_behind_larger_ones():
    assert post_rank({"tea": 5, "rent": 900, "fuel": 70}, "tea") == 3


def test_post_rank_first_of_equals():
    assert post_rank({"tea": 5, "salt": 5}, "tea") == 1


def test_post_rank_unknown():
    assert post_rank({"tea": 5}, "rent") == 0
