"""The mailbox of an actor: a pipe to the rank, two queues to its driver."""

import threading
import time

import numpy as np
import pytest

from swe_rl.trainer.pulse import ALIVE, Pulse
from swe_rl.trainer.ranks.ray_rank import Mailbox


def test_requests_and_answers_keep_their_order_and_the_end_comes_last():
    box = Mailbox()
    for request in (("a", 1), ("b", 2)):
        box.post(request)
    box.hang_up()
    assert [box.recv(), box.recv()] == [("a", 1), ("b", 2)]
    with pytest.raises(EOFError):
        box.recv()
    box.send(("done", None))
    box.send_bytes(memoryview(b"weights"))
    assert box.take() == ("done", None)
    taken = box.take()
    assert isinstance(taken, np.ndarray) and taken.tobytes() == b"weights"


def test_signs_of_life_come_through_while_a_rank_works_for_long():
    box, patience_s = Mailbox(), 0.2
    pulse = Pulse(lambda: box.send((ALIVE,)), patience_s)

    def rank():
        until = time.monotonic() + 3 * patience_s
        while time.monotonic() < until:
            pulse()
            time.sleep(0.001)
        box.send(("done", None))

    threading.Thread(target=rank, daemon=True).start()
    taken, longest_s, before_s = [], 0.0, time.monotonic()
    while taken[-1:] != [("done", None)]:
        taken.append(box.take())
        longest_s, before_s = max(longest_s, time.monotonic() - before_s), time.monotonic()
    assert longest_s < patience_s and 10 <= len(taken) <= 32


def test_a_rank_that_sends_more_than_is_held_waits_until_it_is_taken():
    box, sent = Mailbox(), []

    def rank():
        for number in range(5):
            box.send(number)
            sent.append(number)

    thread = threading.Thread(target=rank, daemon=True)
    thread.start()
    thread.join(timeout=0.2)
    assert thread.is_alive() and len(sent) < 4
    assert [box.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    thread.join(timeout=5)
    assert not thread.is_alive()
