from queuebox.fifo import BoundedQueue


def test_put_adds_at_the_end():
    queue = BoundedQueue(2)
    assert queue.put("a") is True
    assert queue.put("b") is True
    assert queue.items == ["a", "b"]


def test_put_refuses_when_full():
    queue = BoundedQueue(1)
    queue.items.append("a")
    assert queue.put("b") is False
    assert queue.items == ["a"]


def test_put_counts_dropped_items():
    queue = BoundedQueue(0)
    queue.put("a")
    queue.put("b")
    assert queue.dropped == 2


def test_put_refuses_when_closed():
    queue = BoundedQueue(2)
    queue.closed = True
    assert queue.put("a") is False
    assert queue.dropped == 0


def test_get_takes_the_oldest():
    queue = BoundedQueue(3)
    queue.items = ["a", "b", "c"]
    assert queue.get() == "a"
    assert queue.items == ["b", "c"]


def test_get_from_an_empty_queue():
    assert BoundedQueue(1).get() is None


def test_peek_at_the_oldest():
    queue = BoundedQueue(3)
    queue.items = ["a", "b"]
    assert queue.peek() == "a"
    assert queue.items == ["a", "b"]


def test_peek_at_the_newest():
    queue = BoundedQueue(3)
    queue.items = ["a", "b"]
    assert queue.peek(newest=True) == "b"


def test_peek_empty():
    assert BoundedQueue(1).peek() is None


def test_room_shrinks():
    queue = BoundedQueue(3)
    queue.items = ["a"]
    assert queue.room() == 2


def test_room_when_closed():
    queue = BoundedQueue(3)
    queue.closed = True
    assert queue.room() == 0


def test_take_some():
    queue = BoundedQueue(3)
    queue.items = ["a", "b", "c"]
    assert queue.take(2) == ["a", "b"]
    assert queue.items == ["c"]


def test_take_more_than_there_are():
    queue = BoundedQueue(3)
    queue.items = ["a"]
    assert queue.take(5) == ["a"]
    assert queue.items == []


def test_take_none():
    queue = BoundedQueue(3)
    queue.items = ["a", "b"]
    assert queue.take(0) == []


def test_position_from_one():
    queue = BoundedQueue(3)
    queue.items = ["a", "b"]
    assert queue.position("a") == 1
    assert queue.position("b") == 2


def test_position_absent():
    assert BoundedQueue(3).position("a") == 0


def test_close_once():
    queue = BoundedQueue(3)
    assert queue.close() is True
    assert queue.closed is True


def test_close_again():
    queue = BoundedQueue(3)
    queue.closed = True
    assert queue.close() is False


def test_is_done_closed_and_empty():
    queue = BoundedQueue(3)
    queue.closed = True
    assert queue.is_done()


def test_is_done_not_while_open():
    assert not BoundedQueue(3).is_done()


def test_is_done_not_with_items():
    queue = BoundedQueue(3)
    queue.closed = True
    queue.items = ["a"]
    assert not queue.is_done()


def test_fill_percent_of_a_part():
    queue = BoundedQueue(3)
    queue.items = ["a", "b"]
    assert queue.fill_percent() == 66


def test_fill_percent_empty():
    assert BoundedQueue(3).fill_percent() == 0
