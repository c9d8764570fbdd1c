"""What a class of this kind has to hold, and what this one does beside."""

from my_advantage import MyAdvantage

from swe_rl.api import RewardGroup
from swe_rl.testing import check_advantage


def test_it_conforms():
    check_advantage(MyAdvantage)


def test_the_best_of_a_group_is_above_the_others():
    group = RewardGroup((1.0, 0.0, None), (True, True, False), (1.0, 0.0, None))
    [[best, worst, masked]] = MyAdvantage().advantages([group])
    assert best > 0 > worst and masked == 0
