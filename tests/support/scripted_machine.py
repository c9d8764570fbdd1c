"""A machine made of given answers, for tests.

Invariants:
- Deterministic; what was not given is absent: no program, no file, no server.
- A text in place of an answer is the reason why there is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_rl.check.preflight.system import HttpAnswer, HttpQuestion
from swe_rl.host.program import COMMAND_S, Completed, Unanswered


@dataclass(frozen=True)
class ScriptedEngine:
    """`silent`: why it says nothing at all."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    silent: str = ""

    def info(self) -> Mapping[str, Any]:
        if self.silent:
            raise Unanswered(self.silent)
        return self.facts


@dataclass
class ScriptedSystem:
    """`programs` by the beginning of a command line, `servers` by URL, `engines` by address."""

    environment: dict[str, str] = field(default_factory=dict)
    user: tuple[str, int] = ("ann", 1000)
    programs: dict[str, Completed | str] = field(default_factory=dict)
    servers: dict[str, HttpAnswer | str] = field(default_factory=dict)
    engines: dict[str, "ScriptedEngine"] = field(default_factory=dict)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    free_gb: float = 1000.0
    read_only: tuple[str, ...] = ()
    scratch_refusal: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    cpu_count: int = 64
    memory_gb: float = 256.0
    commands: list[str] = field(default_factory=list)
    environments: list[Mapping[str, str] | None] = field(default_factory=list)  # of the commands
    questions: list[HttpQuestion] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # addresses of engines

    def run(
        self, command: Sequence[str], timeout_s: float = COMMAND_S, environment: Mapping[str, str] | None = None
    ) -> Completed | None:
        del timeout_s
        self.environments.append(environment)
        line = " ".join(command)
        self.commands.append(line)
        given = [done for beginning, done in self.programs.items() if line.startswith(beginning)]
        if given and isinstance(given[0], str):
            raise Unanswered(given[0])
        return given[0] if given else None  # type: ignore[return-value]  # a text has raised

    def http(self, question: HttpQuestion) -> HttpAnswer:
        self.questions.append(question)
        answer = self.servers.get(question.url, "connection refused")
        if isinstance(answer, str):
            raise Unanswered(answer)
        return answer

    def is_socket(self, path: str) -> bool:
        return f"unix://{path}" in self.engines

    def engine(self, address: str) -> "ScriptedEngine":
        self.asked.append(address)
        return self.engines.get(address, ScriptedEngine(silent="connection refused"))

    def find_program(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if any(line.split()[0] == name for line in self.programs) else None

    def bind_refused(self, host: str, port: int) -> str | None:
        return self.refused.get((host, port))

    def disk_free_bytes(self, path: str) -> int:
        del path
        return int(self.free_gb * 1e9)

    def scratch_refused(self, parent: str | None) -> str | None:
        del parent
        return self.scratch_refusal

    def writable(self, folder: str) -> bool:
        return not folder.startswith(self.read_only or ("\0",))

    def exists(self, path: str) -> bool:
        return any(file == path or file.startswith(f"{path.rstrip('/')}/") for file in self.files)

    def resolve(self, path: str) -> str:
        return self.links.get(path, path)

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def file_bytes(self, path: str) -> int:
        return len(self.files.get(path, ""))

    def list_folder(self, path: str) -> list[str]:
        inside = f"{path.rstrip('/')}/"
        return sorted({file[len(inside) :].partition("/")[0] for file in self.files if file.startswith(inside)})

    def version(self, distribution: str) -> str | None:
        return self.versions.get(distribution)

    def cpus(self) -> int:
        return self.cpu_count

    def memory_bytes(self) -> int:
        return int(self.memory_gb * 1e9)
