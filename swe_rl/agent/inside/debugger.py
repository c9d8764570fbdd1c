"""This module is a pdb session that is driven one command at a time by separate processes. It runs in the sandbox.

Invariants:
- The debugged program lives in a server of its own for as long as the sandbox lets processes live. Where it was ended
  in between, the same commands are given to a new one first: the caller sees one session either way.
- Breakpoints outlive everything: the end of the program, a restart, a kill, and edits of their files, with which they
  move. After an edit of any Python file the program is started again.
- No command waits longer than its limit: the program is then interrupted, its place shown, and killed.
- Standard library only, and Python 3.6: it runs in the environments of the repositories that are debugged.
"""
# ruff: noqa: UP006, UP035, UP045 - of Python 3.6

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from debuggee import Debuggee, moved_line  # type: ignore[import-not-found,unused-ignore]

# A server that nobody asks ends after so long.
_IDLE_S = 3600.0
_SOCKET = "debugger.sock"


class DebugSession:
    """Holds what the file `state` keeps between two commands, and the running program if there is one."""

    def __init__(self, folder: str, state: Path) -> None:
        self._folder = folder
        self._state = state
        self._program: Optional[Any] = None
        kept = _read_json(state)
        self._entrypoint = str(kept.get("entrypoint", ""))
        # There is a program, or there was one that did not end by itself.
        self._begun = bool(kept.get("begun"))
        self._given: List[str] = list(kept.get("given", []))
        self._at_start: List[Dict[str, Any]] = list(kept.get("at_start", []))
        self._breakpoints: List[Dict[str, Any]] = list(kept.get("breakpoints", []))
        self._sources: Dict[str, str] = dict(kept.get("sources", {}))
        self._stamp = str(kept.get("stamp", ""))

    def answer(self, command: str, entrypoint: str, default: str, limit_s: float) -> str:
        """Gives one command to the program and returns what it says. Getting the program to where the command is given
        may take as long again as the command."""
        notes, said = self._ready(entrypoint, default, time.monotonic() + limit_s)
        if self._program is not None and command:
            said = "\n".join(part for part in (said, self._run(command, limit_s)) if part)
        self._keep()
        shown = "Breakpoints: " + ", ".join(map(self._shown, self._breakpoints)) if self._breakpoints else ""
        return "\n".join(part for part in notes + [said, shown] if part)

    def _ready(self, entrypoint: str, default: str, ends_s: float) -> Tuple[List[str], str]:
        """Makes a program ready for the command: the running one, the same as before, or a new one. Returns notes, and
        what the program said at its start."""
        changed = self._stamp != "" and self._stamp != _stamp_folder(self._folder)
        if self._begun and not changed and not entrypoint:
            if self._program is not None and self._program.status is None:
                return [], ""
            if self._again(ends_s):
                return [], ""
        notes = self._moved() if changed else []
        if self._begun and not entrypoint:
            why = "the source has changed" if changed else "where the program was cannot be reached again"
            notes.insert(0, f"({why}: started again)")
        self._at_start = [dict(point) for point in self._breakpoints]
        entrypoint = entrypoint or self._entrypoint or default
        return ["Debugging: " + entrypoint] + notes, self._start(entrypoint, ends_s)

    def _start(self, entrypoint: str, ends_s: float) -> str:
        self.close()
        self._given = []
        self._program = Debuggee(entrypoint, self._folder)
        said, came = self._program.read(ends_s)
        if not came or self._program.status is not None:
            why = "did not come to a pdb prompt" if not came else f"ended with status {self._program.status}"
            self.close()
            return f"{said}\n({entrypoint} {why}; it has to run under pdb)"
        self._entrypoint = entrypoint
        for point in self._at_start:
            self._program.set_breakpoint(point, ends_s)
        self._begun = True
        return str(said)

    def _again(self, ends_s: float) -> bool:
        """Brings a new program to the place of one that did not outlive the last command, by the same commands. Returns
        False if that fails."""
        given = self._given
        self._start(self._entrypoint, ends_s)
        for command in given:
            if self._program is None or not self._program.ask(command, ends_s)[1] or self._program.status is not None:
                self.close()
                return False
        self._given = given
        return self._program is not None

    def _run(self, command: str, limit_s: float) -> str:
        program = self._program
        ends_s = time.monotonic() + limit_s
        assert program is not None
        said, came = program.ask(command, ends_s)
        if not came:
            place = program.kill(show=True)
            self.close()
            note = f"(no prompt within {limit_s:g}s: the program was killed; the next command starts it again)"
            return "\n".join(part for part in (said, place, note) if part)
        if program.status is not None:
            self.close()
            return f"{said}\n(the program ended with status {program.status}; the next command starts it again)"
        self._given.append(command)
        self._breakpoints = program.breakpoints(ends_s)
        return str(said)

    def _moved(self) -> List[str]:
        """Moves breakpoints with their lines through an edit, and returns notes about it."""
        notes = []
        for point in self._breakpoints:
            before = self._sources.get(point["path"])
            now = _read_text(point["path"])
            if before is None or now is None or before == now:
                continue
            line = moved_line(before.split("\n"), now.split("\n"), point["line"])
            shown = self._shown(point)
            if line != point["line"]:
                point["line"] = line
                notes.append(f"(breakpoint {shown} is now at line {line})")
        return notes

    def _keep(self) -> None:
        self._stamp = _stamp_folder(self._folder)
        self._sources = {point["path"]: _read_text(point["path"]) or "" for point in self._breakpoints}
        kept = {
            "entrypoint": self._entrypoint,
            "begun": self._begun,
            "given": self._given,
            "at_start": self._at_start,
            "breakpoints": self._breakpoints,
            "sources": self._sources,
            "stamp": self._stamp,
        }
        aside = self._state.with_suffix(".new")
        aside.write_text(json.dumps(kept))
        aside.rename(self._state)

    def _shown(self, point: Dict[str, Any]) -> str:
        path = point["path"]
        inside = str(Path(self._folder).resolve()) + os.sep
        name = path[len(inside) :] if path.startswith(inside) else path
        shown = "{}:{}".format(name, point["line"])
        if point["condition"]:
            shown += " if " + point["condition"]
        return shown if point["on"] else shown + " (disabled)"

    def close(self) -> None:
        """Ends the program. Its breakpoints stay."""
        if self._program is not None:
            self._program.kill()
        self._program = None
        self._begun = False


def serve(folder: str, state: Path, door: socket.socket) -> None:
    """Answers one caller after the other, until nobody asks any more."""
    session = DebugSession(folder, state)
    door.settimeout(_IDLE_S)
    try:
        while True:
            caller, _ = door.accept()
            with caller:
                order = json.loads(caller.makefile("r", encoding="utf-8").readline())
                answer = session.answer(order["command"], order["entrypoint"], order["default"], order["limit_s"])
                caller.sendall(json.dumps({"answer": answer}).encode())
    finally:
        session.close()


def main(order: Dict[str, Any]) -> None:
    """Gives one command to the server, and starts the server if there is none."""
    home = Path(__file__).resolve().parent
    folder = str(Path.cwd())
    # A socket's path may have 107 bytes only, so it is relative.
    os.chdir(str(home))
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.connect(_SOCKET)
    except OSError:
        _start_server(folder, home / "session.json")
        caller.connect(_SOCKET)
    with caller:
        caller.sendall((json.dumps(order) + "\n").encode())
        answer = caller.makefile("r", encoding="utf-8").read()
    if not answer:
        raise SystemExit("the debugger ended while it worked; the next command starts it again")
    sys.stdout.write(json.loads(answer)["answer"])


def _start_server(folder: str, state: Path) -> None:
    """Forks a process apart, which keeps nothing open that somebody waits for to be closed."""
    if Path(_SOCKET).exists():
        Path(_SOCKET).unlink()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(_SOCKET)
    door.listen(4)
    if os.fork():
        door.close()
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        serve(folder, state, door)
    finally:
        os._exit(0)


def _stamp_folder(folder: str) -> str:
    """Returns a digest that changes with every Python file of the repository."""
    digest = hashlib.sha1()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in sorted(name for name in names if name.endswith(".py")):
            path = Path(place, name)
            try:
                status = path.stat()
            except OSError:
                continue
            digest.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read_text(path: str) -> Optional[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _read_json(path: Path) -> Dict[str, Any]:
    try:
        kept = json.loads(_read_text(str(path)) or "{}")
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
