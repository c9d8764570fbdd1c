"""`job=runtime` is a server of this machine's sandboxes, for runs elsewhere.

Invariants:
- It is announced in a folder that both sides see, `runtime.json`, with a sign of life every few seconds.
- A key is always needed, also on loopback; it is in a file of that folder that only this user reads, and nowhere else.
- With runtime.kind=job it is there for one run, and ends soon after that run does, however the run ends; else it stays
  until Ctrl-C or the job's time limit.
- Another server that takes its place in the folder ends it. When it ends, its sandboxes do.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from swe_rl.config.choices import RuntimeKind, SandboxKind
from swe_rl.config.environment import key_of
from swe_rl.config.schema import Config, SandboxConfig
from swe_rl.errors import UserError
from swe_rl.facts.sizes import server_slots
from swe_rl.files.disk import DiskError
from swe_rl.hardware.rendezvous import Beating, Meeting, RendezvousError, ServerRecord, Signs, meeting_of
from swe_rl.hardware.slurm.jobs import JobState, current_allocation, has_slurm, job_state
from swe_rl.host.addresses import LOOPBACK, own_address
from swe_rl.logger.progress import ProgressState
from swe_rl.logger.progress_text import format_duration
from swe_rl.run import event_loop
from swe_rl.run.components import scratch_root
from swe_rl.run.runtime_keeper import Tenancy
from swe_rl.run.session import RunSession, open_session
from swe_rl.sandbox.lease import make_leased, reap_stale
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.remote.server import RuntimeServer, ServerOptions
from swe_rl.sandbox.working_copy import remove_tree

# The live line of `job=runtime` says how many places are taken. It has no clock of its own; the bar fills with the
# share of places in use.
_BAR = 100


class RuntimeState(ProgressState):
    def __init__(self) -> None:
        super().__init__(total_steps=_BAR)
        self._line = ""
        self._since_s: float | None = None

    def look(self, used: int, slots: int) -> bool:
        """Tells whether there is something new to show."""
        line = f"{used}/{slots} sandboxes"
        changed = line != self._line
        self._line = line
        self.done_steps = round(_BAR * used / max(1, slots))
        return changed

    def headline(self, now_s: float) -> str:
        if not self._line:
            return "starting"
        self._since_s = now_s if self._since_s is None else self._since_s
        return f"serving {format_duration(now_s - self._since_s)}  {self._line}"

    def collection(self, now_s: float) -> str | None:
        return None


# So many beats are between two lines where there is no live terminal.
_TELL_EVERY = 6
_ASK_QUEUE_S = 15.0


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    meeting = Meeting(meeting_of(config, folder)).create()
    state = RuntimeState()
    with open_session(config, folder, total_steps=0, reports=False, state=state) as run_session:
        event_loop.run_job(_serve_sandboxes(config, run_session, meeting, state))
    return 0


async def _serve_sandboxes(config: Config, session: RunSession, meeting: Meeting, state: RuntimeState) -> None:
    """Serves. Raises UserError where its kind of sandbox does not work here, SandboxError when the port is taken."""
    name = secrets.token_hex(8)
    key = meeting.key(key_of(os.environ, config.sandbox.runtime_key_env))
    host = listen_host(config.runtime.host, os.environ)
    options = ServerOptions(
        slots=server_slots(config),
        lease_s=config.sandbox.lease_s,
        key=key,
        host=host,
        port=config.runtime.port,
        name=name,
    )
    if options.slots < 1:
        raise UserError(
            f"runtime.cpus_per_node={config.runtime.cpus_per_node} less runtime.reserved_cpus="
            f"{config.runtime.reserved_cpus} and runtime.memory_gb={config.runtime.memory_gb:g} have room for no "
            f"sandbox of sandbox.cpus={config.sandbox.cpus:g} and sandbox.memory_gb={config.sandbox.memory_gb:g}"
        )
    with _scratch_folder(config) as scratch:
        below = make_provider(
            served_sandboxes(config, options.slots), scratch_root(config), session.progress.message, run=name
        )
        server = RuntimeServer(below, scratch, options)
        try:
            url = await server.start()
            await _Life(config, session, meeting, server, state).live(_server_record(config, name, url, options.slots))
        finally:
            await server.close()


class _Life:
    """A server from its announcement to its end."""

    def __init__(
        self, config: Config, session: RunSession, meeting: Meeting, server: RuntimeServer, state: RuntimeState
    ) -> None:
        self._config = config
        self._session = session
        self._meeting = meeting
        self._server = server
        self._state = state
        self._tenancy = Tenancy(config.runtime)
        self._signs = Signs({})
        self._asked_s = float("-inf")
        self._job: JobState | None = None

    async def live(self, record: ServerRecord) -> None:
        """Lives until there is a reason to end. Raises DiskError when it cannot be announced."""
        beating = Beating(self._meeting.write_server, record)
        beating.beat()
        self._say_hello(record)
        try:
            reason = await self._until_it_ends(beating)
            self._session.progress.message(f"the sandbox server ends: {reason}")
            self._session.events.write("runtime_ends", reason=reason)
        finally:
            self._leave(beating.record)

    def _say_hello(self, record: ServerRecord) -> None:
        self._session.events.write(
            "runtime_serves", url=record.url, slots=record.slots, containers=record.containers, node=record.node
        )
        for line in welcome_lines(self._config, record, self._meeting):
            self._session.progress.message(line)

    async def _until_it_ends(self, beating: Beating) -> str:
        loop = asyncio.get_running_loop()
        beats = 0
        while True:
            await asyncio.sleep(self._config.runtime.heartbeat_s)
            reason = self._superseded(beating.record) or await self._deserted(loop.time())
            if reason is not None:
                return reason
            # The disk may be back at the next beat; the run's patience is longer.
            with suppress(DiskError):
                beating.beat()
            beats += 1
            if self._state.look(self._server.used, beating.record.slots) and beats % _TELL_EVERY == 0:
                self._session.progress.show()
            self._session.status.heartbeat()

    def _superseded(self, record: ServerRecord) -> str | None:
        try:
            current = self._meeting.server(record.node)
        except RendezvousError as error:
            return str(error)
        if current is not None and current.server != record.server:
            return f"another one has taken its place: {current.url} (job {current.job_id})"
        return None

    async def _deserted(self, now_s: float) -> str | None:
        if self._config.runtime.kind is not RuntimeKind.job:
            return None
        trainers = {member.trainer: member.beat for member in self._meeting.trainers()}
        silences = list(self._signs.look(trainers, now_s).values())
        if self._server.silence_s is not None:
            silences.append(self._server.silence_s)
        return self._tenancy.look(now_s, silences, await self._run_job(now_s))

    async def _run_job(self, now_s: float) -> JobState | None:
        """Returns what SLURM says of the run's job, asked now and then; None where it is not known."""
        job_id = self._meeting.jobs().get("trainer")
        if job_id is None or not has_slurm():
            return None
        if self._job is None or now_s - self._asked_s >= min(_ASK_QUEUE_S, self._config.runtime.lease_s / 2):
            self._asked_s = now_s
            self._job = await asyncio.to_thread(job_state, job_id)
        return self._job

    def _leave(self, record: ServerRecord) -> None:
        """Removes its own file, and what a run that is gone has left."""
        self._meeting.drop_server(record)
        with suppress(RendezvousError):
            if self._config.runtime.kind is RuntimeKind.job:
                for trainer, (_, since_s) in self._signs.seen.items():
                    if asyncio.get_running_loop().time() - since_s > self._config.runtime.lease_s:
                        self._meeting.drop_trainer(trainer)
        self._meeting.leave()


def served_sandboxes(config: Config, slots: int) -> SandboxConfig:
    """Returns what the server makes: `sandbox.*` as the run wants them, by `runtime.containers`."""
    return replace(config.sandbox, kind=SandboxKind(config.runtime.containers), concurrency=slots, runtime_url=None)


def listen_host(wanted: str | None, environ: Mapping[str, str]) -> str:
    """Returns `wanted`; else loopback outside a SLURM job, and the node's own address inside one."""
    if wanted:
        return wanted
    if current_allocation(environ) is None:
        return LOOPBACK
    return own_address()


def welcome_lines(config: Config, record: ServerRecord, meeting: Meeting) -> list[str]:
    """Returns what somebody needs to use it; the key is named by its file."""
    lines = [
        f"sandbox server {record.url}: {record.slots} places for {record.containers} sandboxes",
        f"meeting folder {meeting.folder}; the key is in {meeting.key_file.name} there",
    ]
    if config.runtime.kind is not RuntimeKind.job:
        lines.append(f"use it: runtime=external runtime.shared_dir={meeting.folder}")
        lines.append(
            f"or: runtime=external sandbox.runtime_url={record.url}, with the key in {config.sandbox.runtime_key_env}"
        )
    return lines


def _server_record(config: Config, name: str, url: str, slots: int) -> ServerRecord:
    here = current_allocation(os.environ)
    return ServerRecord(
        server=name,
        url=url,
        host=here.node if here and here.node else socket.gethostname(),
        slots=slots,
        node=config.runtime.node,
        job_id=here.job_id if here else None,
        containers=config.runtime.containers,
        pid=os.getpid(),
    )


@contextmanager
def _scratch_folder(config: Config) -> Iterator[Path]:
    """Yields a folder of this server's for what runs send; a killed server's is removed by the next one here."""
    root = scratch_root(config)
    reap_stale(root)
    folder = make_leased(root, "runtime")
    try:
        yield folder
    finally:
        # The next server finds what is left by its lease.
        with suppress(OSError):
            remove_tree(folder)
