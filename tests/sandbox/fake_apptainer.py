#!/usr/bin/env python3
"""Stands in for `apptainer exec`: takes its command line apart and runs the command by bubblewrap.

Of an image nothing is used but its name; /usr and Python are this machine's.
"""

import os
import sys
from pathlib import Path

_SWITCHES = {"--containall", "--cleanenv", "--no-home", "--no-init", "--pid", "--fakeroot", "--no-privs", "--net"}
_VALUES = {"--hostname", "--pwd", "--overlay", "--network", "--cpus", "--memory", "--memory-swap", "--pids-limit"}
_LOADER = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def main() -> None:
    words = sys.argv[1:]
    if words.pop(0) != "exec":
        sys.exit("only exec")
    switches, binds, variables = set(), [], {}
    while words[0].startswith("--"):
        word = words.pop(0)
        if word in _SWITCHES:
            switches.add(word)
        elif word == "--bind":
            binds.append(words.pop(0).split(":"))
        elif word == "--env":
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        elif word in _VALUES:
            switches.add((word, words.pop(0)))
        else:
            sys.exit(f"unknown flag for command exec: {word}")
    image = words.pop(0)
    if os.environ.get("TMPDIR", "").endswith("no-cgroups") and "--pids-limit" in sys.argv:
        sys.exit("FATAL: while applying cgroups config: no systemd user session")
    if "missing" in image:
        sys.exit(f"FATAL: could not open image {image}: no such file or directory")
    os.execvp("bwrap", [*_bwrap(switches, binds, variables), "--", *words])


def _bwrap(switches: set, binds: list[list[str]], variables: dict[str, str]) -> list[str]:
    assert {"--containall", "--no-init", "--pid"} <= switches
    argv = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--clearenv"]
    if "--net" in switches:
        argv.append("--unshare-net")
    argv += ["--ro-bind", "/usr", "/usr"]
    for name in _LOADER:
        if Path("/", name).is_symlink():
            argv += ["--symlink", str(Path("/", name).readlink()), f"/{name}"]
    for prefix in {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}:
        if not prefix.is_relative_to("/usr"):
            argv += ["--ro-bind", str(prefix), str(prefix)]
    argv += ["--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    argv += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/testbed", "--dir", "/var/tmp"]
    for source, target, mode in binds:
        argv += ["--bind" if mode == "rw" else "--ro-bind", source, target]
    path = f"{Path(sys.base_prefix).resolve()}/bin:/usr/local/bin:/usr/bin:/bin"
    for name, value in {"PATH": path, "HOME": "/root", **variables}.items():
        argv += ["--setenv", name, value.replace("\\,", ",")]
    return argv


if __name__ == "__main__":
    main()
