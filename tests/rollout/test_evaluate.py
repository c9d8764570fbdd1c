"""The held-out rate counts an infrastructure failure neither as solved nor as a sample."""

from swe_rl.rollout.batch import eval_numbers
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.trajectory import Status


def numbers(*trajectories):
    collected = Collected(list(trajectories), [None] * len(trajectories))
    return eval_numbers(collected, step=4, split="heldout", eval_s=1.5)


def test_solved_of_samples_by_instance(trajectory):
    done = numbers(
        trajectory("e.4.a", 0, Status.resolved),
        trajectory("e.4.a", 1, Status.unresolved),
        trajectory("e.4.b", 0, Status.resolved),
        trajectory("e.4.b", 1, Status.infra_error),
    )
    assert done["by_instance"] == {"a": [1, 2], "b": [1, 1]}
    assert (done["resolved_rate"], done["num_samples"], done["num_instances"]) == (2 / 3, 3, 2)
    assert (done["step"], done["split"], done["eval_s"]) == (4, "heldout", 1.5)


def test_nothing_but_failures_is_unknown_and_not_zero(trajectory):
    done = numbers(trajectory("e.4.a", 0, Status.grade_error))
    assert done["resolved_rate"] is None and done["num_samples"] == 0 and done["num_instances"] == 1
