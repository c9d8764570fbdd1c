"""The module is where ranks on other nodes come to their driver: a port that asks for the run's key.

Invariants:
- Nothing is read as more than bytes before both ends have proven that they have the key, which is made for this run.
- Whoever connects and says nothing holds up nobody else.
"""

import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

# Whoever connects has this long to prove the key. The two messages of the proof take milliseconds; a busy node gets
# seconds.
_PROOF_S = 20
# All ranks of a large run may connect in the same moment, and a full queue would refuse some of them.
_BACKLOG = 256
_AGAIN_S = 0.05


class RankDoor:
    """The open port. `close` may be called twice. Connections that were taken out stay open."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._socket = socket.create_server(("", 0), backlog=_BACKLOG)
        self._closed = False
        self._came: dict[int, Connection] = {}
        self._change = threading.Condition()
        threading.Thread(target=self._let_in, name="rank-door", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def take(self, rank: int, timeout_s: float) -> Connection | None:
        """Returns the connection of `rank`, waited for; None where it has not come in time."""
        with self._change:
            self._change.wait_for(lambda: rank in self._came, timeout_s)
            return self._came.pop(rank, None)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            # `accept` returns then, and its thread ends.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._change:
            for connection in self._came.values():
                connection.close()
            self._came.clear()

    def _let_in(self) -> None:
        while True:
            try:
                came, _ = self._socket.accept()
            except OSError:  # closed; or this connection broke off, or too many files are open just now
                if self._closed:
                    return
                time.sleep(_AGAIN_S)
                continue
            threading.Thread(target=self._ask, args=(came,), name="rank-door-ask", daemon=True).start()

    def _ask(self, came: socket.socket) -> None:
        with came:
            came.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            came.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _limit_socket(came, _PROOF_S)
            pipe: Any = Connection(came.dup().detach())
            try:
                deliver_challenge(pipe, self.key)
                answer_challenge(pipe, self.key)
                rank = int(pipe.recv_bytes(16))
                _limit_socket(came, 0)
            except (OSError, EOFError, AuthenticationError, ValueError, AssertionError):
                pipe.close()
                return
        with self._change:
            self._came[rank] = pipe
            self._change.notify_all()


def come_in(host: str, port: int, key: bytes, rank: int) -> Connection:
    """Connects a rank to its driver's port and proves the key. Raises OSError, EOFError or AuthenticationError."""
    there = socket.create_connection((host, port), timeout=_PROOF_S)
    there.settimeout(None)
    there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pipe: Any = Connection(there.detach())
    answer_challenge(pipe, key)
    deliver_challenge(pipe, key)
    pipe.send_bytes(str(rank).encode("ascii"))
    connection: Connection = pipe
    return connection


def _limit_socket(of: socket.socket, seconds: int) -> None:
    """Limits every read and write of a socket in seconds; 0 takes the limit away.

    Python's own limit would make the descriptor non-blocking.
    """
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        of.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
