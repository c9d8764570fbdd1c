"""The port where ranks of other nodes come in: whoever has the key, whatever others do there."""

import errno
import os
import socket
import threading
from multiprocessing import AuthenticationError

import pytest

from swe_rl.trainer.ranks.door import RankDoor, come_in

HERE = "127.0.0.1"


@pytest.fixture
def door():
    door = RankDoor()
    yield door
    door.close()


def test_a_rank_with_the_key_is_connected_by_its_number(door):
    assert door.take(3, 0.0) is None
    there = come_in(HERE, door.port, door.key, 3)
    here = door.take(3, 5.0)
    assert door.take(3, 0.0) is None  # it was taken out
    there.send({"from": "there"})
    assert here.recv() == {"from": "there"}
    door.close()
    here.send(("bytes", 2))
    here.send_bytes(b"x" * 2_000_000)
    received = bytearray(2_000_000)
    assert there.recv() == ("bytes", 2) and there.recv_bytes_into(received) == 2_000_000
    there.close()
    with pytest.raises(EOFError):
        here.recv()


def test_nobody_else_comes_in(door):
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        come_in(HERE, door.port, os.urandom(32), 0)
    assert door.take(0, 0.5) is None


def test_those_who_say_nothing_hold_up_nobody(door):
    silent = [socket.create_connection((HERE, door.port)) for _ in range(3)]
    silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    silent[1].sendall(b"\x00\x00\x00\x01")
    come_in(HERE, door.port, door.key, 1)
    assert door.take(1, 5.0) is not None
    for one in silent:
        one.close()


def test_a_closed_door(door):
    port = door.port
    door.close()
    door.close()
    with pytest.raises(OSError, match="refused"):
        come_in(HERE, port, door.key, 0)
    for thread in threading.enumerate():
        if thread.name == "rank-door":
            thread.join(5.0)
            assert not thread.is_alive()


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EMFILE])
def test_a_connection_that_cannot_be_taken_does_not_shut_the_door(monkeypatch, number):
    accept, failures = socket.socket.accept, [OSError(number, "not this one")]

    def fails_first(of):
        if failures:
            raise failures.pop()
        return accept(of)

    monkeypatch.setattr(socket.socket, "accept", fails_first)
    door = RankDoor()
    threading.Thread(target=come_in, args=(HERE, door.port, door.key, 3), daemon=True).start()
    assert door.take(3, 10.0) is not None
    door.close()
