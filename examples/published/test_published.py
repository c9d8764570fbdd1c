"""What classes of these kinds have to hold."""

from gmpo import Gmpo
from length_loo import LengthLoo
from opo import Opo

from swe_rl.testing import check_advantage, check_loss


def test_they_conform():
    check_advantage(Opo)
    check_advantage(LengthLoo)
    check_loss(Gmpo)
