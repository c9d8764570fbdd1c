"""A filter of system calls for commands in bubblewrap, as its `--seccomp` reads it.

Invariants:
- Refused: sockets to the host of a virtual machine (AF_VSOCK, which no network namespace holds), and new user
  namespaces, in which a command would have capabilities again. `clone3` hides its flags from a filter: it does not
  exist, and programs take `clone`. Programs for another processor mode (32 bit) find no system call at all.
- Everything else is allowed: the namespaces are the border, this closes two ways around them.
- Written here, and not with libseccomp: that has no Python package that its authors publish.
"""

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_AF_VSOCK = 40
_CLONE_NEWUSER = 0x10000000
_X32 = 0x40000000
_CLONE3 = 435


@dataclass(frozen=True, slots=True)
class _Machine:
    audit_number: int
    socket: int
    clone: int
    unshare: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 41, 56, 272),
    "aarch64": _Machine(0xC00000B7, 198, 220, 97),
}


def filter_program(machine: str = "") -> bytes | None:
    """The program for this processor, or for that of the name; None where its numbers are not known."""
    numbers = _MACHINES.get(machine or platform.machine())
    if numbers is None:
        return None
    return b"".join(
        [
            _step(_LOAD, _ARCHITECTURE),
            _step(_EQUAL, numbers.audit_number, on_true=1),
            _refuse(errno.ENOSYS),
            _step(_LOAD, _NUMBER),
            _step(_AT_LEAST, _X32, on_false=1),
            _refuse(errno.ENOSYS),
            _step(_EQUAL, _CLONE3, on_false=1),
            _refuse(errno.ENOSYS),
            *_where(numbers.socket, _EQUAL, _AF_VSOCK, errno.EAFNOSUPPORT),
            *_where(numbers.clone, _ANY_BIT, _CLONE_NEWUSER, errno.EPERM),
            *_where(numbers.unshare, _ANY_BIT, _CLONE_NEWUSER, errno.EPERM),
            _step(_RETURN, _ALLOW),
        ]
    )


def _where(number: int, compared: int, value: int, error: int) -> list[bytes]:
    """Refuses one system call by its first argument; the number is loaded before and after."""
    return [
        _step(_EQUAL, number, on_false=4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(compared, value, on_false=1),
        _refuse(error),
        _step(_LOAD, _NUMBER),
    ]


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _REFUSE | error)


def _step(code: int, value: int, on_true: int = 0, on_false: int = 0) -> bytes:
    """One struct sock_filter; `on_true` and `on_false`: steps to leave out."""
    return struct.pack("=HBBI", code, on_true, on_false, value)
