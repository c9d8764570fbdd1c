"""What a class of this kind has to hold, and what this one does beside."""

from my_agent import MyAgent

from swe_rl.testing import check_agent


def test_it_conforms():
    check_agent(MyAgent)
