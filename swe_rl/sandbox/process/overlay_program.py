"""This program mounts overlays in namespaces of its own, and waits until somebody else holds these.

Usage: python -I -S overlay_program.py ROOT UID [LOWER NAME]...; it makes the folder NAME below the folder ROOT, in
which LOWER is seen, and what is written goes to ROOT/upper-NAME. It says `ready`, and ends when its input does.

Invariants:
- Nothing is mounted where this host sees it: the mounts go away with the last process or descriptor of the namespace.
- What is seen belongs to UID where that is no `-`. This takes an idmapped mount, which needs root and Linux 5.19. With
  `-` a user namespace is made, in which this user is root.
- LOWER is never written. An overlay does not do so, and as root it is seen through a mount that is read-only.
- Only the standard library is used, and no package, so that the program starts in some 20 ms.
"""

import ctypes
import os
import signal
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


def main(root: str, uid: str, *layers: str) -> None:
    """Mounts the overlays, says so, and waits for the end of the input. Raises OSError."""
    os.chdir(root)
    names = [(layers[at], layers[at + 1]) for at in range(0, len(layers), 2)]
    for lower, name in names:
        _make_folders(lower, name, int(uid) if uid != "-" else None)
    if uid == "-":
        user = os.geteuid()
        group = os.getegid()
        _call_libc("unshare", CLONE_NEWUSER | CLONE_NEWNS)
        _map_ids("self", 0, user, group)
    else:
        _call_libc("unshare", CLONE_NEWNS)
    _call_mount(b"none", b"/", None, MS_REC | MS_PRIVATE)
    users = _namespace_of(int(uid)) if uid != "-" else None
    for lower, name in names:
        if users is None:
            _call_mount(os.fsencode(lower), os.fsencode(f"base-{name}"), None, MS_BIND | MS_REC)
        else:
            _show_as(users, lower, f"base-{name}")
        # The paths are relative, so that the list of mounts in a sandbox names no folder of this host. With `volatile`
        # nothing is synced to the disk.
        options = f"lowerdir=base-{name},upperdir=upper-{name},workdir=spare-{name},volatile"
        options += ",userxattr" if users is None else ",redirect_dir=on"
        _call_mount(b"overlay", os.fsencode(name), b"overlay", 0, options.encode())
    print("ready", flush=True)
    sys.stdin.read()


def _make_folders(lower: str, name: str, uid: "int | None") -> None:
    """Makes the folders of one overlay. Raises OSError.

    The overlay has the mode and the owner of the folder for what is written.
    """
    for folder in (name, f"base-{name}", f"upper-{name}", f"spare-{name}"):
        os.mkdir(folder, 0o700)  # noqa: PTH102 - no pathlib: this is to start at once
    os.chmod(f"upper-{name}", os.stat(lower).st_mode & 0o777 | 0o700)  # noqa: PTH101, PTH116
    if uid is not None:
        os.chown(f"upper-{name}", uid, uid)


def _map_ids(process: str, inside: int, user: int, group: int) -> None:
    for file, text in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        with open(f"/proc/{process}/{file}", "w") as writer:  # noqa: PTH123
            writer.write(text)


def _namespace_of(uid: int) -> int:
    """Returns a descriptor of a user namespace in which `uid` of this host is 0. Raises OSError.

    So what belongs to root is shown as belonging to `uid`.
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
        _map_ids(str(child), 0, uid, uid)
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
    try:
        main(*sys.argv[1:])
    except OSError as error:
        print(error.strerror or error, flush=True)
        sys.exit(1)
