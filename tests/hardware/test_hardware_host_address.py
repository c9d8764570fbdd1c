"""This host as others reach it: addresses and the interfaces that have them."""

import socket

import pytest

from swe_rl.host import addresses as host_address
from swe_rl.host.addresses import LOOPBACK, address_of, interface_of, interface_towards, own_address


def test_the_interface_towards_this_host_itself():
    loopback = interface_of(LOOPBACK)
    assert loopback is not None and interface_towards(LOOPBACK) == loopback
    own = own_address()
    assert interface_towards(own) == interface_of(own)


def test_what_nobody_has():
    assert interface_of("192.0.2.77") is None
    assert interface_towards("not a name.invalid") is None


@pytest.mark.parametrize(
    ("name", "resolved", "address"),
    [
        ("n1", "10.0.0.1", "10.0.0.1"),
        ("n1", "127.0.1.1", "10.9.9.9"),  # as /etc/hosts of some hosts says of their own name
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),  # asked for by its number
        ("n1", None, "10.9.9.9"),
    ],
)
def test_the_number_of_this_host_s_name(monkeypatch, name, resolved, address):
    def known(asked):
        assert asked == name
        if resolved is None:
            raise socket.gaierror
        return resolved

    monkeypatch.setattr(host_address.socket, "gethostbyname", known)
    monkeypatch.setattr(host_address, "own_address", lambda: "10.9.9.9")
    assert address_of(name) == address
