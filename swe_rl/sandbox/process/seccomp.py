"""This module makes a filter of system calls for commands in bubblewrap, as its `--seccomp` reads it.

Namespaces are the border of a sandbox. The filter closes what no namespace covers, and what most escapes of the last
ten years began with: parts of the kernel that an ordinary program never asks for.

Invariants:
- What a call may do to the whole machine, and what keeps state outside of every namespace, is refused: see `_REFUSED`.
- Sockets exist for the families of `SOCKET_FAMILIES` alone. The host of a virtual machine (AF_VSOCK) is not reached.
- There are no new user namespaces, in which a command would have capabilities again. `clone3` hides its flags from a
  filter: it does not exist, and programs take `clone`.
- A call that is newer than this table does not exist, and neither does any call of another processor mode (32 bit).
- Nothing types into the terminal of another program (TIOCSTI, TIOCLINUX).
- Everything else is allowed, so that compilers, test runners and debuggers work as they do outside. For what others
  refuse docs/security.md says why.
- The program is written here, because libseccomp has no Python package that its authors publish.
"""

import errno
import platform
import struct
from dataclasses import dataclass

# These are instructions of the kernel's classic packet filter.
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# These are offsets in struct seccomp_data.
_NUMBER = 0
_ARCHITECTURE = 4
_FIRST_ARGUMENT = 16
_SECOND_ARGUMENT = 24
# A filter returns one of these. The lower half of a refusal is the error that the program sees.
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_CLONE_NEWUSER = 0x10000000  # This flag of `clone` and `unshare` asks for a new user namespace.
_CLONE3 = 435
# This is the first number behind those of Linux 6.16, where both processors count alike.
_UNKNOWN = 470
# These requests write into another program's terminal: TIOCSTI types, TIOCLINUX pastes.
_TERMINAL_REQUESTS = (0x5412, 0x541C)
# Programs need sockets of this machine and of the internet. `getifaddrs` asks by the last family for the addresses of
# this network namespace.
SOCKET_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """This is a system call with its number on each processor, and the reason why it is refused.

    A processor without this call has None.
    """

    name: str
    x86_64: int | None
    aarch64: int | None
    reason: str

    def number(self, machine: str) -> int | None:
        """Returns the call's number on a processor, or None where the processor has no such call."""
        if machine == "x86_64":
            return self.x86_64
        return self.aarch64


# These are the reasons for which calls are refused.
_KEYRING = "keys of the session outlive a sandbox, and no namespace divides them"
_IO_URING = "it does other calls where no filter sees them"
_KERNEL_CODE = "it brings code into the kernel, or watches it"
_MOUNTS = "it changes what a path means, or enters a namespace"
_HANDLES = "it opens a file without its path"
_MACHINE = "it changes the whole machine"
_MEMORY_PLACES = "it moves memory between the nodes of the machine, also of other processes"
_OBSOLETE = "no program of today asks for it, and its code in the kernel is old"
_OTHERS = "it reaches into other processes past ptrace's own checks"
_REFUSED = (
    RefusedCall("add_key", 248, 217, _KEYRING),
    RefusedCall("request_key", 249, 218, _KEYRING),
    RefusedCall("keyctl", 250, 219, _KEYRING),
    RefusedCall("io_uring_setup", 425, 425, _IO_URING),
    RefusedCall("io_uring_enter", 426, 426, _IO_URING),
    RefusedCall("io_uring_register", 427, 427, _IO_URING),
    RefusedCall("bpf", 321, 280, _KERNEL_CODE),
    RefusedCall("perf_event_open", 298, 241, _KERNEL_CODE),
    RefusedCall("userfaultfd", 323, 282, _KERNEL_CODE),
    RefusedCall("init_module", 175, 105, _KERNEL_CODE),
    RefusedCall("finit_module", 313, 273, _KERNEL_CODE),
    RefusedCall("delete_module", 176, 106, _KERNEL_CODE),
    RefusedCall("kexec_load", 246, 104, _KERNEL_CODE),
    RefusedCall("kexec_file_load", 320, 294, _KERNEL_CODE),
    RefusedCall("lookup_dcookie", 212, 18, _KERNEL_CODE),
    RefusedCall("mount", 165, 40, _MOUNTS),
    RefusedCall("umount2", 166, 39, _MOUNTS),
    RefusedCall("pivot_root", 155, 41, _MOUNTS),
    RefusedCall("open_tree", 428, 428, _MOUNTS),
    RefusedCall("move_mount", 429, 429, _MOUNTS),
    RefusedCall("fsopen", 430, 430, _MOUNTS),
    RefusedCall("fsconfig", 431, 431, _MOUNTS),
    RefusedCall("fsmount", 432, 432, _MOUNTS),
    RefusedCall("fspick", 433, 433, _MOUNTS),
    RefusedCall("mount_setattr", 442, 442, _MOUNTS),
    RefusedCall("open_tree_attr", 467, 467, _MOUNTS),
    RefusedCall("setns", 308, 268, _MOUNTS),
    RefusedCall("chroot", 161, 51, _MOUNTS),
    RefusedCall("name_to_handle_at", 303, 264, _HANDLES),
    RefusedCall("open_by_handle_at", 304, 265, _HANDLES),
    RefusedCall("fanotify_init", 300, 262, _HANDLES),
    RefusedCall("acct", 163, 89, _MACHINE),
    RefusedCall("quotactl", 179, 60, _MACHINE),
    RefusedCall("quotactl_fd", 443, 443, _MACHINE),
    RefusedCall("swapon", 167, 224, _MACHINE),
    RefusedCall("swapoff", 168, 225, _MACHINE),
    RefusedCall("reboot", 169, 142, _MACHINE),
    RefusedCall("settimeofday", 164, 170, _MACHINE),
    RefusedCall("clock_settime", 227, 112, _MACHINE),
    RefusedCall("clock_adjtime", 305, 266, _MACHINE),
    RefusedCall("sethostname", 170, 161, _MACHINE),
    RefusedCall("setdomainname", 171, 162, _MACHINE),
    RefusedCall("syslog", 103, 116, _MACHINE),
    RefusedCall("vhangup", 153, 58, _MACHINE),
    RefusedCall("iopl", 172, None, _MACHINE),
    RefusedCall("ioperm", 173, None, _MACHINE),
    RefusedCall("mbind", 237, 235, _MEMORY_PLACES),
    RefusedCall("get_mempolicy", 239, 236, _MEMORY_PLACES),
    RefusedCall("set_mempolicy", 238, 237, _MEMORY_PLACES),
    RefusedCall("set_mempolicy_home_node", 450, 450, _MEMORY_PLACES),
    RefusedCall("migrate_pages", 256, 238, _MEMORY_PLACES),
    RefusedCall("move_pages", 279, 239, _MEMORY_PLACES),
    RefusedCall("uselib", 134, None, _OBSOLETE),
    RefusedCall("ustat", 136, None, _OBSOLETE),
    RefusedCall("sysfs", 139, None, _OBSOLETE),
    RefusedCall("modify_ldt", 154, None, _OBSOLETE),
    RefusedCall("_sysctl", 156, None, _OBSOLETE),
    RefusedCall("create_module", 174, None, _OBSOLETE),
    RefusedCall("get_kernel_syms", 177, None, _OBSOLETE),
    RefusedCall("query_module", 178, None, _OBSOLETE),
    RefusedCall("nfsservctl", 180, 42, _OBSOLETE),
    RefusedCall("process_madvise", 440, 440, _OTHERS),
    RefusedCall("kcmp", 312, 272, _OTHERS),
    RefusedCall("pidfd_getfd", 438, 438, _OTHERS),
    RefusedCall("process_vm_readv", 310, 270, _OTHERS),
    RefusedCall("process_vm_writev", 311, 271, _OTHERS),
)


@dataclass(frozen=True, slots=True)
class _Machine:
    audit_number: int
    ioctl: int
    socket: int
    clone: int
    unshare: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, ioctl=16, socket=41, clone=56, unshare=272),
    "aarch64": _Machine(0xC00000B7, ioctl=29, socket=198, clone=220, unshare=97),
}


def refused_calls(machine: str = "") -> dict[str, int]:
    """Returns the numbers of the calls that are refused on a processor (by default this machine's), by name."""
    name = machine or platform.machine()
    numbers = {call.name: call.number(name) for call in _REFUSED}
    return {call: number for call, number in numbers.items() if number is not None}


def refused_names() -> frozenset[str]:
    """Returns the names of the calls that are refused, on whatever processor."""
    return frozenset(call.name for call in _REFUSED)


def filter_program(machine: str = "") -> bytes | None:
    """Returns the program for this processor, or for that of the name, or None where its numbers are not known."""
    name = machine or platform.machine()
    numbers = _MACHINES.get(name)
    if numbers is None:
        return None
    steps = [
        _filter_step(_LOAD, _ARCHITECTURE),
        _filter_step(_EQUAL, numbers.audit_number, on_true=1),
        _refuse_with(errno.ENOSYS),
        _filter_step(_LOAD, _NUMBER),
        # Unknown calls are said not to exist, so that a C library falls back on the ones before them.
        _filter_step(_AT_LEAST, _UNKNOWN, on_false=1),
        _refuse_with(errno.ENOSYS),
        _filter_step(_EQUAL, _CLONE3, on_false=1),
        _refuse_with(errno.ENOSYS),
    ]
    for number in refused_calls(name).values():
        steps += [_filter_step(_EQUAL, number, on_false=1), _refuse_with(errno.EPERM)]
    steps += _terminal_steps(numbers.ioctl)
    steps += _socket_steps(numbers.socket)
    steps += _new_user_steps(numbers.clone)
    steps += _new_user_steps(numbers.unshare)
    steps.append(_filter_step(_RETURN, _ALLOW))
    return b"".join(steps)


def _socket_steps(number: int) -> list[bytes]:
    """Allows the families that programs need. The call's number is loaded before and after."""
    families = list(SOCKET_FAMILIES.values())
    compared = [
        _filter_step(_EQUAL, family, on_true=len(families) - index)  # An allowed family jumps behind the refusal.
        for index, family in enumerate(families)
    ]
    inside = [_filter_step(_LOAD, _FIRST_ARGUMENT), *compared, _refuse_with(errno.EAFNOSUPPORT)]
    return [_filter_step(_EQUAL, number, on_false=len(inside) + 1), *inside, _filter_step(_LOAD, _NUMBER)]


def _terminal_steps(number: int) -> list[bytes]:
    """Refuses two requests of `ioctl`. The call's number is loaded before and after."""
    inside = [_filter_step(_LOAD, _SECOND_ARGUMENT)]
    for request in _TERMINAL_REQUESTS:
        inside += [_filter_step(_EQUAL, request, on_false=1), _refuse_with(errno.EPERM)]
    return [_filter_step(_EQUAL, number, on_false=len(inside) + 1), *inside, _filter_step(_LOAD, _NUMBER)]


def _new_user_steps(number: int) -> list[bytes]:
    """Refuses a call whose flags ask for a new user namespace. The call's number is loaded before and after."""
    return [
        _filter_step(_EQUAL, number, on_false=4),
        _filter_step(_LOAD, _FIRST_ARGUMENT),
        _filter_step(_ANY_BIT, _CLONE_NEWUSER, on_false=1),
        _refuse_with(errno.EPERM),
        _filter_step(_LOAD, _NUMBER),
    ]


def _refuse_with(error: int) -> bytes:
    return _filter_step(_RETURN, _REFUSE | error)


def _filter_step(code: int, value: int, on_true: int = 0, on_false: int = 0) -> bytes:
    """Returns one struct sock_filter; `on_true` and `on_false` say how many steps are left out then."""
    return struct.pack("=HBBI", code, on_true, on_false, value)
