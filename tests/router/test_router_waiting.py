from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.programs import AgeingQueue


def drained(queue):
    out = []
    while (head := queue.head()) is not None:
        out.append(head)
        queue.remove(head)
    return out


def test_who_is_behind_goes_first_but_not_for_ever():
    queue = AgeingQueue(0.1)
    queue.push("ahead", 9, arrived_s=0.0)
    queue.push("behind", 1, arrived_s=50.0)
    queue.push("late", 1, arrived_s=85.0)
    assert drained(queue) == ["behind", "ahead", "late"]


def test_a_program_is_in_once():
    queue = AgeingQueue(1.0)
    queue.push("a", 50, 0.0)
    queue.push("b", 20, 0.0)
    queue.push("a", 10, 0.0)
    assert len(queue) == 2 and "a" in queue and list(queue) == ["a", "b"]
    assert drained(queue) == ["a", "b"] and not queue


_pushes = st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9), st.integers(0, 9), st.booleans())


@given(st.lists(_pushes, max_size=400))
def test_heads_are_those_of_a_sorted_list_and_the_heap_stays_small(pushes):
    queue, model = AgeingQueue(2.0), {}
    for number, (program, turns, arrived, keep) in enumerate(pushes):
        if keep:
            queue.push(program, turns, arrived)
            model[program] = (turns + 2.0 * arrived, number)
        else:
            queue.remove(program)
            model.pop(program, None)
        assert queue.head() == min(model, key=model.__getitem__, default=None)
        assert len(queue) == len(model) and len(queue._heap) <= 2 * len(model) + 65
