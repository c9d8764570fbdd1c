"""What a class of this kind has to hold, and what this one does beside."""

from my_env import MyEnv

from swe_rl.testing import check_env


def test_it_conforms(tmp_path):
    check_env(MyEnv, tmp_path)
