"""A port that is held for a server that starts later."""

import socket
from datetime import timedelta

import pytest

from swe_rl.host.addresses import LOOPBACK, held_port, port_of


def test_nobody_else_has_it_and_torch_s_store_listens_there():
    from torch.distributed import TCPStore

    with held_port() as held, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, port_of(held)))
        limit = timedelta(seconds=20)
        store = TCPStore(LOOPBACK, port_of(held), 1, is_master=True, timeout=limit)
        store.set("said", "heard")
        assert TCPStore(LOOPBACK, port_of(held), 1, is_master=False, timeout=limit).get("said") == b"heard"
