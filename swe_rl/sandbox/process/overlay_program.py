"""This program mounts overlays, each time in namespaces of its own, and hands these to whoever asked for them.

Usage: python -I -S overlay_program.py DESCRIPTOR. The descriptor is a socket, from which each request comes with a
socket for its answer. A request is JSON: {"root": FOLDER, "uid": UID or null, "stacks": [[NAME, [[LOWER, OWNER]...]]]}.
For each stack it makes the folder NAME below ROOT, in which the LOWER folders are seen, the first one on top, and what
is written goes to ROOT/upper-NAME, which may be there already. The answer is `ready` with descriptors of the
namespaces and of the first stack's folder, or says what is wrong. The program ends when its socket does.

Invariants:
- Nothing is mounted where this host sees it: the mounts go away with the last process or descriptor of the namespace.
- What is seen belongs to UID where that is not null. This takes an idmapped mount, which needs root and Linux 5.19.
  What OWNER wrote in a LOWER is seen so; OWNER null says that it is this user's. Without UID a user namespace is made,
  in which this user is root.
- No LOWER is ever written. An overlay does not do so, and as root it is seen through a mount that is read-only.
- A request is answered by a process of its own: a program of one thread may make user namespaces, and one that hangs
  holds up no other.
- Only the standard library is used, and no package, so that the program starts in some 30 ms.
"""

import ctypes
import json
import os
import signal
import socket
import sys

# The numbers are those of linux/sched.h, linux/mount.h and fcntl.h. Every processor has the same ones for these calls.
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
OPEN_TREE = 428
MOVE_MOUNT = 429
MOUNT_SETATTR = 442
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = 0o2000000
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_IDMAP = 0x100000

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


MOST_BYTES = 1 << 17  # A request is at most so long.
_LONGEST_S = 30  # The kernel ends an answer that takes longer.


def main(descriptor: int) -> None:
    """Answers requests until there are no more."""
    requests = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the processes that answer.
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 1)
        if not text:
            return
        if not os.fork():
            requests.close()
            _answer(text, socket.socket(fileno=descriptors[0]))
            os._exit(0)
        for number in descriptors:
            os.close(number)


def _answer(text: bytes, answers: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.alarm(_LONGEST_S)
    try:
        descriptors = _mount_request(**json.loads(text))
        socket.send_fds(answers, [b"ready"], descriptors)
    except OSError as error:
        answers.send((error.strerror or str(error)).encode())
    except BaseException as error:
        answers.send(repr(error).encode())


def _mount_request(
    root: str, uid: "int | None", stacks: "list[tuple[str, list[tuple[str, int | None]]]]"
) -> "list[int]":
    """Mounts the overlays. Returns descriptors of the mount namespace, of the user namespace where one was made, and of
    the first overlay. Raises OSError."""
    os.chdir(root)
    for name, lowers in stacks:
        _make_folders(lowers[-1][0], name, len(lowers), uid)
    if uid is None:
        user = os.geteuid()
        group = os.getegid()
        _call_libc("unshare", CLONE_NEWUSER | CLONE_NEWNS)
        _map_ids("self", 0, user, group)
    else:
        _call_libc("unshare", CLONE_NEWNS)
    _call_mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    users: dict[int, int] = {}
    for name, lowers in stacks:
        for number, (lower, owner) in enumerate(lowers):
            seen = _name_lower(name, number)
            if owner == uid:
                # It is this user's without an idmapped mount, whose user namespace takes a process of its own.
                _call_mount(os.fsencode(lower), os.fsencode(seen), None, MS_BIND | MS_REC)
                continue
            if uid is None:
                raise OSError(f"what user {owner} wrote cannot be shown without root")
            owner = 0 if owner is None else owner
            if owner not in users:
                users[owner] = _make_user_namespace(owner, uid)
            _show_as(users[owner], lower, seen)
        _mount_overlay(name, len(lowers), in_user_namespace=uid is None)
    flags = os.O_RDONLY | os.O_CLOEXEC
    namespaces = ["mnt"] if uid is not None else ["mnt", "user"]
    opened = [os.open(f"/proc/self/ns/{name}", flags) for name in namespaces]
    return [*opened, os.open(stacks[0][0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]


def _name_lower(name: str, number: int) -> str:
    return f"base{number}-{name}"


def _mount_overlay(name: str, num_lowers: int, *, in_user_namespace: bool) -> None:
    # The paths are relative, so that the list of mounts in a sandbox names no folder of this host. With `volatile`
    # nothing is synced to the disk.
    lowers = ":".join(_name_lower(name, number) for number in range(num_lowers))
    options = f"lowerdir={lowers},upperdir=upper-{name},workdir=spare-{name},volatile,index=off"
    if in_user_namespace:
        options += ",userxattr"
    else:
        options += ",redirect_dir=on"
    _call_mount(b"overlay", os.fsencode(name), b"overlay", 0, options.encode())


def _make_folders(lowest: str, name: str, num_lowers: int, uid: "int | None") -> None:
    """Makes the folders of one overlay that are not there yet. Raises OSError.

    The overlay has the mode and the owner of the folder for what is written. A new one has the mode of the lowest
    folder.
    """
    for folder in (name, *(_name_lower(name, number) for number in range(num_lowers))):
        if not os.path.isdir(folder):  # noqa: PTH112 - no pathlib: this is to start at once
            os.mkdir(folder, 0o700)  # noqa: PTH102
    os.mkdir(f"spare-{name}", 0o700)  # noqa: PTH102
    if os.path.isdir(f"upper-{name}"):  # noqa: PTH112
        return
    os.mkdir(f"upper-{name}", 0o700)  # noqa: PTH102
    os.chmod(f"upper-{name}", os.stat(lowest).st_mode & 0o777 | 0o700)  # noqa: PTH101, PTH116
    if uid is not None:
        os.chown(f"upper-{name}", uid, uid)


def _map_ids(process: str, inside: int, user: int, group: int) -> None:
    for file, text in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        with open(f"/proc/{process}/{file}", "w") as writer:  # noqa: PTH123
            writer.write(text)


def _make_user_namespace(owner: int, uid: int) -> int:
    """Returns a descriptor of a user namespace in which `uid` of this host is `owner`. Raises OSError.

    So what belongs to `owner` is shown as belonging to `uid`.
    """
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        try:
            _call_libc("unshare", CLONE_NEWUSER)
            os.write(write_fd, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_fd)
    try:
        if not os.read(read_fd, 1):
            raise OSError("no user namespace can be made")
        _map_ids(str(child), owner, uid, uid)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(read_fd)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _show_as(users: int, lower: str, folder: str) -> None:
    tree = _call_system(OPEN_TREE, AT_FDCWD, os.fsencode(lower), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)
    attributes = _Attributes(MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY, 0, 0, users)
    _call_system(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes))
    _call_system(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(folder), MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def _call_mount(source: bytes, target: bytes, kind: "bytes | None", flags: int, options: "bytes | None" = None) -> None:
    _call_libc("mount", source, target, kind, ctypes.c_ulong(flags), options)


def _call_libc(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        raise _last_error(name)


def _call_system(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _last_error(f"system call {number}")
    return result


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
