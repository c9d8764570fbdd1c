"""Does a run's side of the two jobs: finds its sandbox servers, says that it lives, has them started again.

Invariants:
- A server is used only after it proved that it has the key; the key is sent to no other address.
- While none serves, starts of sandboxes wait, and why they wait is a line of progress.
- When none will serve again, whoever waits gets RuntimeLost; the run saves its state and ends with exit status 1.
- Signs of life come from a thread of their own: a busy run is not a dead one.
- Who decides (ServerWatch, Tenancy) has no clock, file or network of its own. Waiting in the queue counts for nothing;
  every other state ends after a time that the configuration names: neither side waits for ever.
"""

import asyncio
import contextlib
import os
import secrets
import shlex
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import aiohttp

from swe_rl.config.choices import RuntimeKind
from swe_rl.config.launcher import paste_override
from swe_rl.config.schema import Config, RuntimeConfig
from swe_rl.errors import RunError
from swe_rl.files.disk import DiskError
from swe_rl.hardware.rendezvous import Beating, Meeting, ServerRecord, TrainerRecord, uses_meeting
from swe_rl.hardware.slurm.batch_script import job_key
from swe_rl.hardware.slurm.jobs import (
    JobState,
    Queue,
    SlurmError,
    cancel_job,
    current_allocation,
    has_slurm,
    job_state,
    submit_script,
)
from swe_rl.run.session import RunSession
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.fleet import RuntimeFleet, ServerAddress


class Act(StrEnum):
    # It serves.
    USE = "use"
    WAIT = "wait"
    # Its job is to be submitted again; one that still runs is cancelled first.
    RESTART = "restart"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class KeeperDecision:
    act: Act
    words: str = ""


class ServerWatch:
    """The run's view of one server. `restarts` are those in a row, without a time of steady service between them."""

    def __init__(self, node: int, runtime: RuntimeConfig) -> None:
        self._name = f"sandbox server {node}"
        self._runtime = runtime
        self._away_since_s: float | None = None
        self._up_since_s: float | None = None
        # This is so in its present start.
        self._served = False
        self.restarts = 0

    def look(
        self, now_s: float, *, alive: bool, job: JobState | None, can_submit: bool, note: str = ""
    ) -> KeeperDecision:
        """Decides. `job` is None where no job of SLURM's is known; `note` is what else there is to say while it is
        away.
        """
        if alive:
            return self._alive(now_s)
        self._up_since_s = None
        if job is not None and job.where is Queue.WAITS:
            self._away_since_s = None
            self._served = False
            return KeeperDecision(Act.WAIT, f"{self._name} is in the queue, job {job.words}")
        if self._away_since_s is None:
            self._away_since_s = now_s
        away_s = now_s - self._away_since_s
        if job is not None and job.where is Queue.GONE:
            return self._again(f"the job of {self._name} has ended", can_submit)
        if away_s <= self._patience_s(job):
            where = "its job runs" if job is not None and job.where is Queue.RUNS else "no job of it is known"
            return KeeperDecision(
                Act.WAIT, f"{self._name} does not answer {'any more' if self._served else 'yet'} ({note or where})"
            )
        return self._again(f"{self._name} did not answer for {away_s:.0f} s{f' ({note})' if note else ''}", can_submit)

    def restarted(self) -> None:
        """Notes that its job was submitted, or could not be."""
        self.restarts += 1
        self._away_since_s = None
        self._served = False

    def _alive(self, now_s: float) -> KeeperDecision:
        self._away_since_s = None
        self._served = True
        self._up_since_s = now_s if self._up_since_s is None else self._up_since_s
        if now_s - self._up_since_s >= self._runtime.ready_timeout_s:
            self.restarts = 0
        return KeeperDecision(Act.USE)

    def _patience_s(self, job: JobState | None) -> float:
        """Returns the patience: a server that served and whose job runs hangs, or is cut off; else it may
        be starting.
        """
        hangs = self._served and job is not None and job.where is Queue.RUNS
        return self._runtime.lease_s if hangs else self._runtime.ready_timeout_s

    def _again(self, why: str, can_submit: bool) -> KeeperDecision:
        if not can_submit:
            return KeeperDecision(Act.LOST, why)
        if self.restarts >= self._runtime.max_restarts:
            return KeeperDecision(
                Act.LOST, f"{why}, and it was started {self.restarts} times anew (runtime.max_restarts)"
            )
        return KeeperDecision(Act.RESTART, why)


class Tenancy:
    """The server's view of the runs that it is there for."""

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._runtime = runtime
        self._alone_since_s: float | None = None
        self._had = False

    def look(self, now_s: float, silences_s: Collection[float], job: JobState | None) -> str | None:
        """Returns why the server should end, or None. `silences_s` are of every run that has not said that it is over.

        `job` is the run's, None where none is known.
        """
        if any(silence_s <= self._runtime.lease_s for silence_s in silences_s):
            self._had = True
            self._alone_since_s = None
            return None
        if job is not None and job.where is Queue.WAITS:
            self._alone_since_s = None
            return None
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        alone_s = now_s - self._alone_since_s
        # It is starting, or SLURM does not answer.
        if job is not None and job.where is not Queue.GONE:
            limit_s = self._runtime.ready_timeout_s
            return f"the run gave no sign of life for {alone_s:.0f} s" if alone_s > limit_s else None
        if self._had:
            return f"the run gave no sign of life for {min(silences_s):.0f} s" if silences_s else "the run is over"
        if job is not None:
            return "the run's job has ended" if alone_s > self._runtime.lease_s else None
        return f"no run came within {alone_s:.0f} s" if alone_s > self._runtime.ready_timeout_s else None


_HEALTH_S = 5.0
_ASK_QUEUE_S = 10.0


class RuntimeLost(RunError):
    """No sandbox server is left, and none will come."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The things that the keeper asks of SLURM; `here` says whether there is one."""

    here: Callable[[], bool] = has_slurm
    state: Callable[[str], JobState] = job_state
    submit: Callable[[Path], str] = submit_script
    cancel: Callable[[str], None] = cancel_job


@dataclass(slots=True)
class _ServerNode:
    watch: ServerWatch
    decision: KeeperDecision = field(default_factory=lambda: KeeperDecision(Act.WAIT))
    record: ServerRecord | None = None
    job: JobState | None = None
    asked_s: float = float("-inf")


@contextlib.asynccontextmanager
async def kept_fleet(config: Config, session: RunSession) -> AsyncIterator[RuntimeFleet]:
    """Yields the sandboxes of the servers that `runtime.shared_dir` names, for the time of the block."""
    assert uses_meeting(config) and config.runtime.shared_dir is not None
    fleet = RuntimeFleet(config.sandbox, renew_s=config.runtime.heartbeat_s)
    keeper = RuntimeKeeper(config, Meeting(Path(config.runtime.shared_dir)), session, fleet)
    keeper.start()
    try:
        yield fleet
    finally:
        await keeper.close()


class RuntimeKeeper:
    def __init__(
        self,
        config: Config,
        meeting: Meeting,
        session: RunSession,
        fleet: RuntimeFleet,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._config = config
        self._meeting = meeting.create()
        self._session = session
        self._fleet = fleet
        self._scheduler = scheduler or Scheduler()
        self._nodes = [_ServerNode(ServerWatch(number, config.runtime)) for number in range(config.runtime.nodes)]
        self._beating = Beating(meeting.write_trainer, _trainer_record(session.folder.name))
        self._said: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="runtime-heartbeat", daemon=True)
        self._task: asyncio.Task[None] | None = None
        self._http: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Starts the watch. Raises DiskError for a folder where nobody can be met."""
        self._beating.beat()
        self._thread.start()
        self._task = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """Ends the watch: the servers learn it at once, and what a dead one left in the folder goes away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._fleet.close()
        dead = await self._dead()
        if self._http is not None:
            await self._http.close()
        self._ended.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._meeting.drop_trainer(self._beating.record.trainer)
        for record in dead:
            self._meeting.drop_server(record)
        self._meeting.leave()

    async def _dead(self) -> list[ServerRecord]:
        """Returns records of servers that do not answer now: a run may end before its watch has seen the death."""
        records = [node.record for node in self._nodes if node.record is not None]
        if self._http is None:
            return []
        alive = await asyncio.gather(*map(self._answers, records))
        return [record for record, answers in zip(records, alive, strict=True) if not answers]

    def _beat(self) -> None:
        while not self._ended.wait(self._config.runtime.heartbeat_s):
            # The disk may be back at the next beat; a server's patience is longer.
            with contextlib.suppress(DiskError):
                self._beating.beat()

    async def _watch(self) -> None:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_HEALTH_S))
        while True:
            try:
                await self._look()
            except asyncio.CancelledError:
                raise
            except RunError as error:
                self._fleet.give_up(error)
            # It is an error of ours: nobody must wait for a watch that has ended.
            except Exception as error:
                self._fleet.give_up(RuntimeLost(f"sandbox servers are not watched any more: {error!r}"))
                raise
            await asyncio.sleep(min(1.0, self._config.runtime.heartbeat_s))

    async def _look(self) -> None:
        """Looks once at all servers. Raises RendezvousError for servers of another version."""
        records = {server.node: server for server in await asyncio.to_thread(self._meeting.servers)}
        # More than this run asked for are welcome.
        for number in sorted(records.keys() - set(range(len(self._nodes)))):
            if number == len(self._nodes):
                self._nodes.append(_ServerNode(ServerWatch(number, self._config.runtime)))
        await asyncio.gather(*(self._look_at(number, records.get(number)) for number in range(len(self._nodes))))
        alive = [node.record for node in self._nodes if node.decision.act is Act.USE and node.record is not None]
        key = self._meeting.known_key()
        self._fleet.use(ServerAddress(server.server, server.url, server.slots, key) for server in alive)
        if not alive:
            self._session.status.heartbeat()
        if all(node.decision.act is Act.LOST for node in self._nodes):
            self._fleet.give_up(self._lost())

    async def _look_at(self, number: int, record: ServerRecord | None) -> None:
        node = self._nodes[number]
        now_s = asyncio.get_running_loop().time()
        alive = record is not None and await self._answers(record)
        if not alive:
            await self._ask_queue(number, node, record, now_s)
        node.record = record
        note = f"no answer from {record.url}" if record is not None else self._how_to(node)
        node.decision = node.watch.look(
            now_s, alive=alive, job=node.job, can_submit=self._can_submit(number), note=note
        )
        self._say(number, node)
        if node.decision.act is Act.RESTART:
            await self._restart(number, node)

    def _how_to(self, node: _ServerNode) -> str:
        return f"nobody has started it: {self._by_hand()}" if node.job is None else ""

    async def _answers(self, record: ServerRecord) -> bool:
        key = self._meeting.known_key()
        challenge = secrets.token_hex(16)
        assert self._http is not None
        if key is None:
            return False
        try:
            async with self._http.get(f"{record.url}/health", params={"challenge": challenge}) as response:
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return isinstance(answer, dict) and answer.get("proof") == wire.proof_of(key, record.server, challenge)

    async def _ask_queue(self, number: int, node: _ServerNode, record: ServerRecord | None, now_s: float) -> None:
        """Asks SLURM for the job's state, but not every second: a controller has others to answer."""
        if not self._scheduler.here():
            return
        job_id = self._meeting.jobs().get(job_key(number)) or (record.job_id if record is not None else None)
        if job_id is not None and now_s - node.asked_s >= min(_ASK_QUEUE_S, self._config.runtime.heartbeat_s):
            node.asked_s = now_s
            node.job = await asyncio.to_thread(self._scheduler.state, job_id)

    def _can_submit(self, number: int) -> bool:
        mine = self._config.runtime.kind is RuntimeKind.job
        return mine and self._scheduler.here() and self._meeting.script(number).is_file()

    async def _restart(self, number: int, node: _ServerNode) -> None:
        """Starts a server again, its old job first cancelled, so that there are never two."""
        node.watch.restarted()
        old = self._meeting.jobs().get(job_key(number))
        try:
            if old is not None:
                await asyncio.to_thread(self._scheduler.cancel, old)
            new = await asyncio.to_thread(self._scheduler.submit, self._meeting.script(number))
        except SlurmError as error:
            self._session.progress.message(f"sandbox server {number}: {error}")
            # It is not asked again at once.
            node.job = JobState(Queue.UNKNOWN)
            node.asked_s = asyncio.get_running_loop().time()
            return
        self._meeting.note_jobs(**{job_key(number): new})
        node.job = None
        node.asked_s = float("-inf")
        self._session.record("runtime_restarted", {"node": number, "job": new, "reason": node.decision.words})
        self._session.progress.message(
            f"sandbox server {number} is started again as job {new} "
            f"({node.watch.restarts} of {self._config.runtime.max_restarts}): {node.decision.words}"
        )

    def _say(self, number: int, node: _ServerNode) -> None:
        """Says each state once: a lasting line of the console and of run.log."""
        words = node.decision.words
        record = node.record
        if node.decision.act is Act.USE and record is not None:
            job = f" (job {record.job_id})" if record.job_id else ""
            words = f"sandbox server {number}: {record.url}, {record.slots} places on {record.host}{job}"
        elif node.decision.act is Act.RESTART:
            return
        if words and self._said.get(number) != words.partition(" for ")[0]:
            self._said[number] = words.partition(" for ")[0]
            self._session.progress.message(words)

    def _lost(self) -> RuntimeLost:
        words = "; ".join(node.decision.words for node in self._nodes)
        again = f"sbatch {shlex.quote(str(self._meeting.script(0)))}" if self._can_submit(0) else self._by_hand()
        return RuntimeLost(
            f"No sandbox server is left: {words}. What they said last is in {self._meeting.folder} "
            f"({self._meeting.log(0).name}). Start one with `{again}` and go on with trainer.resume=auto."
        )

    def _by_hand(self) -> str:
        return f"python -m swe_rl job=runtime runtime=job {paste_override('runtime.shared_dir', self._meeting.folder)}"


def _trainer_record(run: str) -> TrainerRecord:
    here = current_allocation(os.environ)
    return TrainerRecord(
        trainer=secrets.token_hex(8),
        run=run,
        host=here.node if here and here.node else socket.gethostname(),
        job_id=here.job_id if here else None,
        pid=os.getpid(),
    )
