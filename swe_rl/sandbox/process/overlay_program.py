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
  holds up no other. Some wait for requests, so that nobody waits for a fork. They end with this program.
- A user namespace says no more than whose files are shown as whose. So it is kept, and used for later requests.
- Only the standard library is used, and no package, so that the program starts in some 30 ms.
"""

import ctypes
import json
import os
import select
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


PR_SET_PDEATHSIG = 1
MOST_BYTES = 1 << 17  # A request is at most so long.
_LONGEST_S = 30  # The kernel ends an answer that takes longer.
_WAITING = 2  # So many processes wait for requests.
_SPARES = 2  # Each of them has so many new user namespaces, if there are some: a fork of a sandbox needs two.
_MOST_SPARES = 4  # The program keeps so many more, of those that were not used.
_MOST_KEPT = 256  # So many user namespaces are kept, each by a descriptor.
# A process that waited says one of these to the program, or sends a user namespace. What it sends is used again.
_TAKEN = b"taken"
_ENDED = b"ended"
_UNUSED = b"unused"
# Has descriptors of user namespaces, by the user whose files are shown, and the one as whose they are shown.
Users = dict[tuple[int, int], int]


class _Spare:
    """This is a user namespace without a user. A process is in it until it is used. `ready_fd` can be read when the
    namespace is there."""

    def __init__(self, process: int, ready_fd: int) -> None:
        self.process = process
        self.ready_fd = ready_fd

    @classmethod
    def begin(cls) -> "_Spare":
        """Starts the process."""
        ready_fd, write_fd = os.pipe()
        parent = os.getpid()
        process = os.fork()
        if not process:
            try:
                _call_libc("unshare", CLONE_NEWUSER)
                _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                # On a busy machine the call before takes long. A parent that ended meanwhile sends no signal any more.
                if os.getppid() == parent:
                    os.write(write_fd, b".")
                    signal.pause()
            finally:
                os._exit(1)
        os.close(write_fd)
        return cls(process, ready_fd)

    def use(self, owner: int, uid: int) -> int:
        """Returns a descriptor of the namespace, in which `uid` of this host is `owner`. Raises OSError.

        So what belongs to `owner` is shown as belonging to `uid`.
        """
        try:
            if not os.read(self.ready_fd, 1):
                raise OSError("no user namespace can be made")
            _map_ids(str(self.process), owner, uid, uid)
            return os.open(f"/proc/{self.process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.kill(self.process, signal.SIGKILL)


class _Program:
    """This starts the processes that answer requests, and keeps what they leave."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._told, self._tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._kept: Users = {}
        self._spares: list[_Spare] = []  # A process that answered did not use them.

    def run(self) -> None:
        """Answers requests until there are no more."""
        # Others than root show nobody's files as somebody else's, and need no spares.
        needs_spares = os.geteuid() == 0
        if needs_spares:
            self._spares += [_Spare.begin() for _ in range(_WAITING * _SPARES)]
        for _ in range(_WAITING):
            self._begin_to_wait()
        while True:
            # Spares are made while nobody waits for this program, so that many requests at once wait for none of them.
            while needs_spares and len(self._spares) < _SPARES and not select.select([self._told], [], [], 0.0)[0]:
                self._spares.append(_Spare.begin())
            text, descriptors, _, _ = socket.recv_fds(self._told, 64, 1)
            if text == _ENDED:
                return
            if text == _TAKEN:
                self._begin_to_wait()
            elif text.startswith(_UNUSED):
                self._take_back(_Spare(int(text.split()[1]), descriptors[0]))
            else:
                self._keep(text, descriptors[0])

    def _take_back(self, spare: _Spare) -> None:
        if len(self._spares) < _MOST_SPARES:
            self._spares.append(spare)
            return
        os.kill(spare.process, signal.SIGKILL)
        os.close(spare.ready_fd)

    def _keep(self, text: bytes, descriptor: int) -> None:
        owner, uid = map(int, text.split())
        former = self._kept.pop((owner, uid), None)
        if former is None and len(self._kept) >= _MOST_KEPT:
            former = self._kept.pop(next(iter(self._kept)))
        if former is not None:
            os.close(former)
        self._kept[owner, uid] = descriptor

    def _begin_to_wait(self) -> None:
        """Starts a process that answers the next request."""
        spares = self._spares[:_SPARES]
        del self._spares[:_SPARES]
        if os.fork():
            for spare in spares:
                os.close(spare.ready_fd)
            return
        try:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            text, descriptors, _, _ = socket.recv_fds(self._requests, MOST_BYTES, 1)
            if text:
                _LIBC.prctl(PR_SET_PDEATHSIG, 0)  # What was asked for is answered, also if the program ends.
                self._tells.send(_TAKEN)
                self._requests.close()
                self._answer(text, socket.socket(fileno=descriptors[0]), spares)
            else:
                self._tells.send(_ENDED)
        finally:
            os._exit(0)

    def _answer(self, text: bytes, answers: socket.socket, spares: "list[_Spare]") -> None:
        signal.alarm(_LONGEST_S)
        users = _Users(self._kept, spares)
        try:
            descriptors = _mount_request(**json.loads(text), users=users)
            socket.send_fds(answers, [b"ready"], descriptors)
        except OSError as error:
            answers.send((error.strerror or str(error)).encode())
        except BaseException as error:
            answers.send(repr(error).encode())
        users.tell(self._tells)


class _Users:
    """These are the user namespaces that one request uses."""

    def __init__(self, kept: Users, spares: "list[_Spare]") -> None:
        self._kept = kept
        self._spares = spares
        self._made: Users = {}

    def find(self, owner: int, uid: int) -> int:
        """Returns a descriptor of the one that shows files of `owner` as those of `uid`. Raises OSError."""
        if (owner, uid) in self._kept:
            return self._kept[owner, uid]
        if (owner, uid) not in self._made:
            # There is none if many ask at once, or where a snapshot of a snapshot has layers of more users.
            spare = self._spares.pop() if self._spares else _Spare.begin()
            self._made[owner, uid] = spare.use(owner, uid)
        return self._made[owner, uid]

    def tell(self, tells: socket.socket) -> None:
        """Gives the program what was made, and what was not used."""
        for (owner, uid), namespace in self._made.items():
            socket.send_fds(tells, [b"%d %d" % (owner, uid)], [namespace])
        for spare in self._spares:
            socket.send_fds(tells, [b"%s %d" % (_UNUSED, spare.process)], [spare.ready_fd])


def main(descriptor: int) -> None:
    """Answers requests until there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the processes that answer.
    _Program(socket.socket(fileno=descriptor)).run()


def _mount_request(
    root: str,
    uid: "int | None",
    stacks: "list[tuple[str, list[tuple[str, int | None]]]]",
    users: _Users,
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
    for name, lowers in stacks:
        for number, (lower, owner) in enumerate(lowers):
            seen = _name_lower(name, number)
            if owner == uid:
                # It is this user's without an idmapped mount, whose user namespace takes a process of its own.
                _call_mount(os.fsencode(lower), os.fsencode(seen), None, MS_BIND | MS_REC)
                continue
            if uid is None:
                raise OSError(f"what user {owner} wrote cannot be shown without root")
            _show_as(users.find(owner or 0, uid), lower, seen)
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
