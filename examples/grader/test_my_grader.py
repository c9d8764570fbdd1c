"""What a class of this kind has to hold, and what this one does beside."""

import pytest
from my_grader import MyGrader

from swe_rl.testing import ConformanceError, check_grader


def test_it_conforms():
    check_grader(MyGrader)


def test_a_large_change_is_not_resolved():
    with pytest.raises(ConformanceError, match="2 lines were changed"):
        check_grader(MyGrader, params={"max_lines": 1})
