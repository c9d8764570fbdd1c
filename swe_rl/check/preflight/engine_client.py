"""A container engine that answers: over its socket, or through its command line where the address needs that.

Invariants:
- An address in DOCKER_HOST is the only one tried; without it, the places where engines listen by default.
- Both engines are asked through Docker's API, which podman's service speaks as well.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from swe_rl.check.preflight.system import Answer, Question, System, job_environment
from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import Config
from swe_rl.host.program import Completed, Unanswered

_LIST_S = 5.0


class EngineSilentError(Exception):
    """No engine answers; the text says why at each address. `given`: the address came from the environment."""

    def __init__(self, tried: Mapping[str, str], *, given: bool) -> None:
        super().__init__("; ".join(f"{address}: {reason}" for address, reason in tried.items()))
        self.given = given


@dataclass(frozen=True, slots=True)
class Engine:
    """`facts` are the engine's own; `socket` or `url` is where it answers, neither where only the program does."""

    program: str
    facts: Mapping[str, Any]
    environment: Mapping[str, str]
    socket: str | None = None
    url: str | None = None

    @property
    def local(self) -> bool:
        return self.socket is not None or (self.url is None and not _address(self.program, self.environment))

    @property
    def served(self) -> bool:
        """True if other programs can reach it, not only its own command line."""
        return self.socket is not None or bool(_address(self.program, self.environment))

    @property
    def root(self) -> str | None:
        """Where it keeps images and containers."""
        found = self.facts.get("DockerRootDir") or _inside(self.facts, "store", "graphRoot")
        return found if isinstance(found, str) else None

    @property
    def rootless(self) -> bool:
        """Docker says so among its security options, podman's service and podman's program each in their own way."""
        options = self.facts.get("SecurityOptions") or ()
        told = self.facts.get("Rootless") or _inside(self.facts, "host", "security", "rootless")
        return bool(told) or any("rootless" in str(option) for option in options)

    @property
    def mirrors(self) -> bool:
        return bool(_inside(self.facts, "RegistryConfig", "Mirrors"))

    def missing_limits(self) -> list[str]:
        """Limits of a container that this engine cannot enforce.

        A rootless engine can enforce none with version 1 of control groups, whatever podman says of itself.
        """
        names = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "CPUs"}
        version = self.facts.get("CgroupVersion") or _inside(self.facts, "host", "cgroupVersion") or ""
        if self.rootless and version.removeprefix("v") == "1":
            return list(names.values())
        return [name for fact, name in names.items() if self.facts.get(fact) is False]

    def images(self, system: System) -> set[str]:
        """Names of all local images, each with its tag or digest. Raises Unanswered."""
        if self.socket is None and self.url is None:
            command = [self.program, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]
            done = _completed(system.run(command, _LIST_S, environment=self.environment), self.program)
            return {line.strip() for line in done.stdout.splitlines()}
        listed = self._get(system, "/images/json", _LIST_S).json()
        return {name for image in listed for key in ("RepoTags", "RepoDigests") for name in image.get(key) or ()}

    def has_image(self, system: System, name: str) -> bool:
        """Raises Unanswered."""
        if self.socket is None and self.url is None:
            command = [self.program, "image", "inspect", "--format", "{{.Id}}", name]
            return _completed_or_none(system.run(command, environment=self.environment)) is not None
        return self._get(system, f"/images/{quote(name, safe='/:@')}/json").status == 200

    def _get(self, system: System, path: str, timeout_s: float = 2.0) -> Answer:
        return system.http(Question(f"{self.url or 'http://engine'}{path}", socket=self.socket, timeout_s=timeout_s))


def connect(config: Config, system: System) -> Engine:
    """The first engine that answers. Raises EngineSilentError."""
    environment = job_environment(config, system)
    program = "podman" if config.sandbox.kind is SandboxKind.podman else "docker"
    tried: dict[str, str] = {}
    for address in _addresses(program, environment, system):
        try:
            if (engine := _at(address, program, environment, system)) is not None:
                return engine
            tried[address] = "is not an address of a container engine"
        except Unanswered as reason:
            tried[address] = str(reason)
    if program == "podman" and not _address(program, environment):
        try:
            return Engine(program, _facts_by_program(program, environment, system), environment)
        except Unanswered as reason:
            tried["`podman info`"] = str(reason)
    raise EngineSilentError(tried, given=_address(program, environment) is not None)


def _addresses(program: str, environment: Mapping[str, str], system: System) -> Iterator[str]:
    if given := _address(program, environment):
        yield given
        return
    if program == "docker":
        yield "unix:///var/run/docker.sock"
        return
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{system.user[1]}"
    yield f"unix://{runtime}/podman/podman.sock"
    yield "unix:///run/podman/podman.sock"


def _address(program: str, environment: Mapping[str, str]) -> str | None:
    names = ("DOCKER_HOST", "CONTAINER_HOST") if program == "podman" else ("DOCKER_HOST",)
    return next((environment[name] for name in names if environment.get(name)), None)


def _at(address: str, program: str, environment: Mapping[str, str], system: System) -> Engine | None:
    kind, _, place = address.partition("://")
    encrypted = bool(environment.get("DOCKER_TLS_VERIFY"))
    if kind == "unix":
        return Engine(program, _facts(system, "http://engine", place), environment, socket=place)
    if kind in ("tcp", "http") and not encrypted:
        return Engine(program, _facts(system, f"http://{place}", None), environment, url=f"http://{place}")
    if kind in ("tcp", "https", "ssh"):
        return Engine(program, _facts_by_program(program, environment, system), environment)
    return None


def _facts(system: System, url: str, socket: str | None) -> Mapping[str, Any]:
    answer = system.http(Question(f"{url}/info", socket=socket))
    facts = answer.json()
    if answer.status != 200 or not isinstance(facts, dict):
        message = facts.get("message") if isinstance(facts, dict) else None
        raise Unanswered(f"status {answer.status}: {message or 'not an engine'}")
    return facts


def _facts_by_program(program: str, environment: Mapping[str, str], system: System) -> Mapping[str, Any]:
    command = [program, "info", "--format", "{{json .}}"]
    facts = json.loads(_completed(system.run(command, environment=environment), program).stdout or "null")
    if not isinstance(facts, dict) or facts.get("ServerErrors"):
        errors = (facts or {}).get("ServerErrors") or ["no facts"]
        raise Unanswered(str(errors[0]))
    return facts


def _completed(done: Completed | None, program: str) -> Completed:
    if done is None:
        raise Unanswered(f"there is no `{program}` on PATH")
    if done.status != 0:
        raise Unanswered(done.reason)
    return done


def _completed_or_none(done: Completed | None) -> Completed | None:
    return done if done is not None and done.status == 0 else None


def _inside(facts: Mapping[str, Any], *path: str) -> Any:
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
