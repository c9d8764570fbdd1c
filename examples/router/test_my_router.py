"""What a class of this kind has to hold, and what this one does beside."""

from my_router import MyRouter

from swe_rl.testing import check_router


def test_it_conforms():
    check_router(MyRouter)
