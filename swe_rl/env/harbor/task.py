"""Reads a task folder: instruction.md, task.toml, environment/, tests/, solution/.

Invariants:
- What a task asks for and this environment does not give is refused by its name, before anything is started.
- Nothing of `tests/` and `solution/` is in what an agent gets.
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_rl.dataset.instance import InstanceError
from swe_rl.files.lines import lines_of

DEFAULT_WORKDIR = "/app"
# A task that names no time limit has this one.
_DEFAULT_S = 600.0
_NEEDED = ("instruction.md", "task.toml", "tests/test.sh")
# This environment does not give these sections' keys, so a task that sets one is refused.
_NOT_GIVEN = {
    "environment": ("env", "gpus", "tpu", "mcp_servers", "healthcheck"),
    "solution": ("env",),
    "agent": ("user",),
    "verifier": ("user", "environment", "collect"),
}
# A prepared folder can stand for these instructions of a Dockerfile.
_BY_FOLDER = ("FROM", "WORKDIR", "COPY")
_OF_A_START = ("CMD", "EXPOSE", "LABEL")  # These instructions are skipped, because a sandbox starts in its own way.


@dataclass(frozen=True, slots=True)
class HarborTask:
    folder: Path
    instruction: str
    agent_timeout_s: float
    verifier_timeout_s: float
    verifier_env: tuple[tuple[str, str], ...]
    docker_image: str  # The image is task.toml's, else the one that its Dockerfile was built as.
    workdir: str
    # Each copy of the Dockerfile has a path below environment/, and the place where it goes.
    copies: tuple[tuple[str, str], ...]
    # This is the first instruction of the Dockerfile that only a build can do; it is empty if there is none.
    needs_build: str

    @property
    def name(self) -> str:
        return self.folder.name


def read_task(folder: Path) -> HarborTask:
    """Returns the task of a folder.

    Raises InstanceError for a task that is incomplete or asks for what is not given.
    """
    missing = [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        raise InstanceError(
            f"{folder}: {', '.join(missing)} missing; a task in the Harbor format has {', '.join(_NEEDED)}, and "
            "environment/Dockerfile or an image in task.toml"
        )
    config = _read_toml(folder / "task.toml")
    _refuse_unsupported(config, folder)
    environment = _read_section(config, "environment", folder)
    image = str(environment.get("docker_image") or "")
    dockerfile = folder / "environment" / "Dockerfile"
    if not image and not dockerfile.is_file():
        raise InstanceError(
            f"{folder}: it has neither environment/Dockerfile nor environment.docker_image in task.toml"
        )
    workdir, copies, needs_build = _read_dockerfile(dockerfile) if dockerfile.is_file() else (DEFAULT_WORKDIR, (), "")
    return HarborTask(
        folder=folder.resolve(),
        instruction=_read_text(folder / "instruction.md"),
        agent_timeout_s=_read_timeout(config, "agent", folder),
        verifier_timeout_s=_read_timeout(config, "verifier", folder),
        verifier_env=_read_variables(config, folder),
        docker_image=image or built_image(folder),
        workdir=str(environment.get("workdir") or workdir),
        copies=copies,
        needs_build=needs_build,
    )


def built_image(folder: Path) -> str:
    """Returns the name that the image of environment/Dockerfile has to have where task.toml names none: hb__TASK."""
    return "hb__" + re.sub(r"[^a-z0-9._-]", "-", folder.name.lower())


def digest_of(folder: Path) -> str:
    """Returns a hash of all files of a task, and of whether they can be executed.

    It is another one where any file changed. Raises InstanceError.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = _read_bytes(path)
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o100}\0".encode())
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InstanceError(f"{path} is not TOML: {error}; correct it, or leave the folder out") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InstanceError(f"{path} cannot be read: {error.strerror}") from error


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InstanceError(f"{path} is not UTF-8 text: {error}") from error


def _read_section(config: Mapping[str, Any], name: str, folder: Path) -> Mapping[str, Any]:
    value = config.get(name, {})
    if not isinstance(value, Mapping):
        raise InstanceError(f"{folder}/task.toml: {name} must be a table")
    return value


def _refuse_unsupported(config: Mapping[str, Any], folder: Path) -> None:
    """Refuses a task that asks for something without which its verdict would be wrong. Raises InstanceError."""
    asked = [
        f"{section}.{key}"
        for section, keys in _NOT_GIVEN.items()
        for key in keys
        if _read_section(config, section, folder).get(key)
    ]
    if _read_section(config, "environment", folder).get("os", "linux") != "linux":
        asked.append("environment.os")
    if config.get("steps"):
        asked.append("steps")
    if _read_section(config, "verifier", folder).get("environment_mode", "shared") != "shared":
        asked.append("verifier.environment_mode")
    if any((folder / "environment").glob("docker-compose.y*ml")):
        asked.append("environment/docker-compose.yaml")
    if asked:
        raise InstanceError(
            f"{folder}: it asks for {', '.join(asked)}, which env=harbor does not give: a task here has one step, one "
            "container of Linux, the image's user, and no GPU. Leave the folder out"
        )


def _read_timeout(config: Mapping[str, Any], section: str, folder: Path) -> float:
    value = _read_section(config, section, folder).get("timeout_sec", _DEFAULT_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InstanceError(f"{folder}/task.toml: {section}.timeout_sec={value!r} must be a number of seconds above 0")
    return float(value)


def _read_variables(config: Mapping[str, Any], folder: Path) -> tuple[tuple[str, str], ...]:
    value = _read_section(config, "verifier", folder).get("env", {})
    if not isinstance(value, Mapping) or not all(isinstance(text, str) and "$" not in text for text in value.values()):
        raise InstanceError(
            f"{folder}/task.toml: verifier.env must be a table of plain texts; a variable of this machine is not given "
            "to a verifier"
        )
    return tuple((str(name), text) for name, text in value.items())


def _read_dockerfile(path: Path) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """Returns the working directory, what is copied, and the first line that a folder cannot stand for."""
    workdir = ""
    copies = list[tuple[str, str]]()
    needs_build = ""
    for line in lines_of(_read_text(path).replace("\\\n", " "), ends=False):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        kind = words[0].upper()
        given = words[1:]
        simple = kind in _BY_FOLDER and not any(word.startswith(("--", "[")) or "$" in word for word in given)
        if kind == "WORKDIR" and simple and given:
            workdir = given[0] if given[0].startswith("/") else f"{workdir}/{given[0]}"
        elif kind == "COPY" and simple and len(given) >= 2:
            folder = given[-1] if given[-1].startswith("/") else f"{workdir}/{given[-1]}"
            copies += [(source, folder if len(given) == 2 else f"{folder.rstrip('/')}/") for source in given[:-1]]
        elif kind not in _OF_A_START and (not simple or kind != "FROM"):
            needs_build = needs_build or " ".join(words)
    return workdir or DEFAULT_WORKDIR, tuple(copies), needs_build
