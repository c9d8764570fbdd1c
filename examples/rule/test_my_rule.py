"""What a class of this kind has to hold, and what this one does beside."""

from my_rule import MyRule

import swe_rl
from swe_rl.testing import check_rule


def test_it_conforms():
    check_rule(MyRule, refused=["rollout.prompts_per_step=64", "rollout.n=16"], passed=["rollout.n=4"])


def test_the_way_out_is_within_the_budget():
    [said] = MyRule(max_trajectories=32).findings(swe_rl.compose(["rollout.n=8"]))
    assert said.fix == "rollout.n=4"
