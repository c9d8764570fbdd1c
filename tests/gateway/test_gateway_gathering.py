import threading
import time

import pytest

from swe_rl.gateway.store.traces import Gathering


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_what_comes_soon_is_taken_together_and_in_order():
    queue = Gathering(100, gather_s=0.2)
    taken = []
    taker = in_thread(lambda: taken.append(queue.take()))
    for item in range(5):
        assert queue.try_put(item)
        time.sleep(0.005)
    taker.join(5)
    assert taken == [list(range(5))] and len(queue) == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_haste_ends_the_gathering(at_once):
    queue = Gathering(8, gather_s=60.0)
    taken = []
    taker = in_thread(lambda: taken.append(queue.take()))
    assert queue.try_put("first")
    if at_once:
        queue.put("flush", at_once=True)
    else:
        assert queue.try_put("a quarter of the room is taken")
    taker.join(5)
    assert len(taken) == 1 and len(taken[0]) == 2
    assert queue.try_put("next")  # haste is over with the group
    taker = in_thread(queue.take)
    taker.join(0.1)
    assert taker.is_alive()


def test_a_full_queue_says_so_or_makes_wait():
    queue = Gathering(2, gather_s=0.0)
    assert queue.try_put(0) and queue.try_put(1) and not queue.try_put(2)
    putter = in_thread(queue.put, 2)
    putter.join(0.1)
    assert putter.is_alive()
    assert queue.take() == [0, 1]
    putter.join(5)
    assert queue.take() == [2]


def test_what_was_taken_is_unfinished_until_it_is_done():
    queue = Gathering(4, gather_s=0.0)
    queue.put("a")
    queue.take()
    queue.put("b")
    assert queue.unfinished() == ["a", "b"]
    queue.done()
    assert queue.unfinished() == ["b"]


def test_many_threads_lose_nothing():
    queue, taken = Gathering(8, gather_s=0.001), []

    def take():
        while len(taken) < 4000:
            taken.extend(queue.take())

    taker = in_thread(take)
    putters = [in_thread(lambda n=n: [queue.put((n, i)) for i in range(1000)]) for n in range(4)]
    for thread in (*putters, taker):
        thread.join(20)
        assert not thread.is_alive()
    assert [[i for n, i in taken if n == putter] for putter in range(4)] == [list(range(1000))] * 4
