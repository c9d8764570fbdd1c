"""This module holds sandboxes of any kind to what the protocol says of snapshots, resets and forks.

Invariants:
- A kind without snapshots says so by a NoSnapshotsError. Nothing else is accepted of it.
- What commands see is compared byte for byte: content, modes, links, hard links, times, and what was removed. Times are
  compared by their whole seconds, as an image of a container has no more of them.
"""

from swe_rl.extension.conformance import ConformanceError
from swe_rl.sandbox.sandbox import NoSnapshotsError, Sandbox, SandboxError, SandboxProvider, Snapshot, Workspace

_LIMIT_S = 30.0
# All that a command can tell of the files below the working folder and the temporary folder, without the door's own.
_LOOK = r"""
for folder in . "${TMPDIR:-/tmp}"; do
  cd "$folder" || exit
  find . -mindepth 1 -name .swe_rl -prune -o -mindepth 1 -printf '%P|%y|%m|%l|%n|%T@\n' | sed 's/[.][0-9]*$//' | sort
  find . -mindepth 1 -name .swe_rl -prune -o -type f -exec cksum {} + | sort
done
stat -c %a .
"""
_WRITE = r"""
mkdir -p kept/deep empty gone/deeper "${TMPDIR:-/tmp}/aside"
printf 'a\0b\n' > kept/deep/binary; : > kept/none; echo first > kept/one; ln kept/one kept/other_name
chmod 0640 kept/one; chmod 0700 kept; chmod 2750 empty; ln -s deep/binary kept/link; ln -s /nowhere kept/dangling
mkfifo kept/pipe; rm -f given.txt; echo in_tmp > "${TMPDIR:-/tmp}/aside/file"; echo x > gone/deeper/file
touch -d 2001-02-03T04:05:06.789 kept/deep/binary kept/deep; chmod 0 kept/none
"""
_CHANGE = r"""
echo more >> kept/one; chmod 0777 kept/deep; rm -rf empty gone; mkdir gone; echo new > gone/file; echo back > given.txt
rm -f kept/link; ln -s one kept/link; echo new > new; rm -rf "${TMPDIR:-/tmp}/aside"; echo y > "${TMPDIR:-/tmp}/other"
chmod 0600 kept/none; echo text > kept/none; mv kept moved
"""


async def check_snapshots(provider: SandboxProvider, workspace: Workspace) -> bool:
    """Tells whether the provider's sandboxes have snapshots, and tries all that these have to do then.

    Raises ConformanceError for what they do otherwise, and SandboxError where they break.
    """
    parent = await provider.create(workspace, owner="conformance/parent")
    await _run(parent, _WRITE)
    try:
        snapshot = await parent.snapshot()
    except NoSnapshotsError:
        await _check_refusals(provider, parent)
        await parent.close()
        return False
    seen = await _look(parent)
    await _check_forks(provider, parent, snapshot, seen)
    await _check_resets(parent, snapshot, seen)
    await _check_second_snapshot(provider, parent, snapshot, seen)
    await _check_processes(provider, parent)
    await parent.close()
    orphan = await provider.fork(snapshot, owner="conformance/orphan")
    _require(await _look(orphan) == seen, "a fork must not need the sandbox of its snapshot")
    await provider.drop(snapshot)
    await provider.drop(snapshot)
    _require(await _look(orphan) == seen, "a fork must not need its snapshot any more")
    await orphan.close()
    await _require_refused(provider, snapshot)
    return True


async def _check_refusals(provider: SandboxProvider, sandbox: Sandbox) -> None:
    try:
        await sandbox.reset(Snapshot("none"))
    except NoSnapshotsError:
        await _require_refused(provider, Snapshot("none"))
        return
    raise ConformanceError("reset must raise NoSnapshotsError where snapshot does")


async def _require_refused(provider: SandboxProvider, snapshot: Snapshot) -> None:
    try:
        await provider.fork(snapshot, owner="conformance/refused")
    except SandboxError:
        return
    raise ConformanceError("fork must raise SandboxError for a snapshot that is not there")


async def _check_forks(provider: SandboxProvider, parent: Sandbox, snapshot: Snapshot, seen: str) -> None:
    """Forks before and after the parent changes. Neither sees what the other does from then on."""
    first = await provider.fork(snapshot, owner="conformance/first")
    _require(first.sandbox_id != parent.sandbox_id, "a fork must have an id of its own")
    _require_same(await _look(first), seen, "a fork must see its parent's files as they were")
    await _run(first, _CHANGE)
    changed = await _look(first)
    _require(changed != seen, "a fork must be written")
    _require_same(await _look(parent), seen, "a parent must not see what its fork does")
    await _run(parent, "echo parent > of_the_parent; rm -rf kept/deep")
    _require_same(await _look(first), changed, "a fork must not see what its parent does")
    second = await provider.fork(snapshot, owner="conformance/second")
    _require_same(await _look(second), seen, "a fork must see the snapshot, and not its parent as it is now")
    change = "touch kept/deep/binary kept/one && rm -r empty && rm -r gone"
    owned = await second.exec(change, timeout_s=20)
    _require(owned.exit_code == 0, f"a fork must own what its parent wrote: {owned.output}")
    await first.close()
    await second.close()


async def _check_resets(parent: Sandbox, snapshot: Snapshot, seen: str) -> None:
    for _ in range(2):
        await _run(parent, _CHANGE + "\ntrue")
        await parent.write_file("written/outside.txt", b"x")
        await parent.reset(snapshot)
        _require_same(await _look(parent), seen, "reset must bring the snapshot back")
    read = await parent.read_file("kept/deep/binary")
    _require(read == b"a\0b\n", "read_file must read what reset brought back")


async def _check_second_snapshot(provider: SandboxProvider, parent: Sandbox, snapshot: Snapshot, seen: str) -> None:
    """Takes a snapshot of what was written above the first one."""
    await _run(parent, _CHANGE)
    later = await parent.snapshot()
    changed = await _look(parent)
    fork = await provider.fork(later, owner="conformance/later")
    _require_same(await _look(fork), changed, "a fork of a second snapshot must see both")
    await fork.reset(snapshot)
    _require_same(await _look(fork), seen, "a fork must be reset to an earlier snapshot of its parent")
    await parent.reset(snapshot)
    await parent.reset(later)
    _require_same(await _look(parent), changed, "a later snapshot must outlive a reset to an earlier one")
    await provider.drop(later)
    _require_same(await _look(parent), changed, "a sandbox must not need a snapshot that was dropped")
    await fork.close()


async def _check_processes(provider: SandboxProvider, parent: Sandbox) -> None:
    """Nothing that runs is in a fork: what a command left behind was ended with it."""
    await parent.exec("sleep 611 > /dev/null 2>&1 & echo $! > running", timeout_s=20)
    snapshot = await parent.snapshot()
    fork = await provider.fork(snapshot, owner="conformance/processes")
    look = "cat /proc/$(cat running)/cmdline 2> /dev/null | tr -d '\\0' | grep 'sleep61[1]'"
    looked = await fork.exec(look, timeout_s=20)
    _require(not looked.output.strip(), "a fork must have none of its parent's processes")
    await fork.close()
    await provider.drop(snapshot)


async def _run(sandbox: Sandbox, script: str) -> None:
    done = await sandbox.exec(script, timeout_s=_LIMIT_S)
    _require(done.exit_code == 0, f"a command failed: {done.output}")


async def _look(sandbox: Sandbox) -> str:
    return (await sandbox.exec(_LOOK, timeout_s=_LIMIT_S)).output


def _require_same(seen: str, wanted: str, rule: str) -> None:
    if seen != wanted:
        differences = sorted({*seen.split("\n")} ^ {*wanted.split("\n")})
        raise ConformanceError(f"{rule}: {'; '.join(differences[:6])}")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ConformanceError(rule)
