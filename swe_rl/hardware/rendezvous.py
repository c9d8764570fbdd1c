"""The meeting is the folder where sandbox servers and the runs that use them find each other.

Invariants:
- Files are written aside, then renamed, mode 0600 in a folder of mode 0700: what is read is whole and ours.
- The servers' key is in a file of its own, made once by whoever comes first, and in no record, message or name.
- A sign of life is a count that grows. Readers time it by their own clock: clocks of two nodes need not agree.
- Whoever goes takes its own file along, and those of others that are known to be gone.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from swe_rl.config.choices import JobName, RuntimeKind
from swe_rl.config.schema import Config
from swe_rl.errors import RunError
from swe_rl.files.disk import disk_error, remove_asides_of, write_bytes_atomic
from swe_rl.files.json_text import decode_json, encode_json

PROTOCOL = 1
# The folder with the meetings lies beside the runs' folders.
MEETINGS = "meeting"
_SERVER = "runtime"
_TRAINER = "trainer"
_KEY = "runtime.key"
_JOBS = "jobs.json"
_KEY_BYTES = 32
_OURS = 0o600


class RendezvousError(RunError):
    """The shared folder cannot be used, or the other side speaks another protocol."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Says where a sandbox server is, and that it lives: `runtime.json` (`runtime_1.json`, ... of further nodes)."""

    # Names this start of the server: it has another name after a restart.
    server: str
    url: str
    host: str
    slots: int
    node: int = 0
    job_id: str | None = None
    containers: str = ""
    pid: int = 0
    beat: int = 0
    # This is the time of the last beat, by the writer's clock. It is for people.
    time: float = 0.0
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """Names a run that uses the servers: `trainer_ID.json`."""

    trainer: str
    run: str
    host: str
    job_id: str | None = None
    pid: int = 0
    beat: int = 0
    time: float = 0.0
    protocol: int = PROTOCOL


class Meeting:
    """Knows the paths, and reads and writes the records. Raises DiskError for a folder that takes no files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def server_json(self, node: int) -> Path:
        return self.folder / (f"{_SERVER}_{node}.json" if node else f"{_SERVER}.json")

    def trainer_json(self, trainer: str) -> Path:
        return self.folder / f"{_TRAINER}_{trainer}.json"

    def script(self, node: int) -> Path:
        """Returns the path of the script by which the job of a server is submitted, at first and again."""
        return self.folder / f"{_SERVER}_{node}.sh"

    def log(self, node: int) -> Path:
        return self.folder / f"{_SERVER}_{node}.log"

    @property
    def key_file(self) -> Path:
        return self.folder / _KEY

    def create(self) -> "Meeting":
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise disk_error(self.folder, error) from error
        return self

    def key(self, wanted: str | None = None) -> str:
        """Returns the servers' key. If there is none yet, it makes `wanted` or a new one. Whoever comes second takes
        the first's."""
        if known := self.known_key():
            return known
        aside = self.folder / f".{_KEY}.{secrets.token_hex(6)}"
        try:
            write_bytes_atomic(aside, (wanted or secrets.token_urlsafe(_KEY_BYTES)).encode(), mode=_OURS)
            with suppress(FileExistsError):
                os.link(aside, self.key_file)
            return self.key_file.read_text(encoding="utf-8")
        except OSError as error:
            raise disk_error(self.key_file, error) from error
        finally:
            # The folder may take no change any more, which is said above.
            with suppress(OSError):
                aside.unlink()

    def known_key(self) -> str | None:
        try:
            return self.key_file.read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def write_server(self, record: ServerRecord) -> None:
        _write_record(self.server_json(record.node), asdict(record))

    def write_trainer(self, record: TrainerRecord) -> None:
        _write_record(self.trainer_json(record.trainer), asdict(record))

    def servers(self) -> list[ServerRecord]:
        """Returns the servers by node. Raises RendezvousError for a record of another protocol."""
        records = [_parse_record(ServerRecord, values) for values in self._values(_SERVER)]
        return sorted((record for record in records if record is not None), key=lambda record: record.node)

    def server(self, node: int) -> ServerRecord | None:
        return next((server for server in self.servers() if server.node == node), None)

    def trainers(self) -> list[TrainerRecord]:
        records = [_parse_record(TrainerRecord, values) for values in self._values(_TRAINER)]
        return [record for record in records if record is not None]

    def drop_server(self, record: ServerRecord) -> None:
        """Removes the server's file, unless it is another server's by now, and what it left if it was killed while it
        wrote."""
        # Another server may be writing its own file.
        remove_asides_of(self.server_json(record.node), record.pid)
        with suppress(RendezvousError):
            current = self.server(record.node)
            if current is None or current.server == record.server:
                _remove_quietly(self.server_json(record.node))

    def drop_trainer(self, trainer: str) -> None:
        remove_asides_of(self.trainer_json(trainer))
        _remove_quietly(self.trainer_json(trainer))

    def leave(self) -> None:
        """Removes the key, and the folder if it is empty then, once nobody is left who could want them."""
        if not any(True for name in (_SERVER, _TRAINER) for _ in self._values(name)):
            _remove_quietly(self.key_file)
            with suppress(OSError):
                self.folder.rmdir()

    def jobs(self) -> dict[str, str]:
        """Maps names to SLURM's ids: `trainer`, `runtime0`, ...; what nobody noted is not there."""
        try:
            values = decode_json((self.folder / _JOBS).read_bytes())
        except (OSError, ValueError):
            return {}
        if isinstance(values, dict):
            return {str(name): str(job) for name, job in values.items()}
        return {}

    def note_jobs(self, **jobs: str) -> None:
        _write_record(self.folder / _JOBS, {**self.jobs(), **jobs})

    def _values(self, kind: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob(f"{kind}*.json")):
            # The file may be gone meanwhile.
            with suppress(OSError, ValueError):
                values = decode_json(path.read_bytes())
                if isinstance(values, dict):
                    yield values


@dataclass(slots=True)
class Signs:
    """Remembers when each of several others was last seen to live. It has no clock of its own."""

    # Maps a name to its count and when that was new.
    seen: dict[str, tuple[int, float]]

    def look(self, beats: Mapping[str, int], now_s: float) -> dict[str, float]:
        """Returns the seconds of silence of each; one that is seen for the first time counts as just heard."""
        self.seen = {
            name: self.seen[name] if self.seen.get(name, (None,))[0] == beat else (beat, now_s)
            for name, beat in beats.items()
        }
        return {name: now_s - since_s for name, (_, since_s) in self.seen.items()}


class Beating:
    """Writes a record again and again, each time with a larger count."""

    def __init__(
        self, write: Callable[[Any], None], record: Any, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._write = write
        self._wall_clock = wall_clock
        self.record = record

    def beat(self, **changes: Any) -> None:
        """Writes the record with the next count. Raises DiskError."""
        self.record = replace(self.record, beat=self.record.beat + 1, time=self._wall_clock(), **changes)
        self._write(self.record)


def meeting_of(config: Config, run_folder: Path) -> Path:
    """Returns the folder where the servers of a run meet it: `runtime.shared_dir`, or a folder beside the run's."""
    if config.runtime.shared_dir:
        return Path(config.runtime.shared_dir).absolute()
    return run_folder.absolute().parent / MEETINGS / run_folder.name


def uses_meeting(config: Config) -> bool:
    """Tells whether a job of this configuration finds its servers (or its runs) in a folder."""
    kind = config.runtime.kind
    given = kind is RuntimeKind.external and not config.sandbox.runtime_url
    return config.job.name is JobName.runtime or kind is RuntimeKind.job or given


def with_meeting(config: Config, run_folder: Path) -> Config:
    """Returns the configuration with `runtime.shared_dir` filled in if it is left to the run's folder."""
    if not uses_meeting(config):
        return config
    return replace(config, runtime=replace(config.runtime, shared_dir=str(meeting_of(config, run_folder))))


def _parse_record(kind: Any, values: dict[str, Any]) -> Any:
    """Makes a record, or None of what is no record. Raises RendezvousError for another protocol's."""
    if values.get("protocol") != PROTOCOL:
        raise RendezvousError(
            f"the other side of the two jobs speaks protocol {values.get('protocol')!r}, this one {PROTOCOL}: both "
            "must run the same version of swe_rl; end the old job and start it anew"
        )
    try:
        return kind(**values)
    except TypeError:
        return None


def _write_record(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a record, also if the other side has just left and taken the folder along."""
    write_bytes_atomic(path, encode_json(values, indent=True) + b"\n", mode=_OURS)


def _remove_quietly(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
