"""A run's side of the two jobs: finds its sandbox servers, tells them that it lives, has them started again.

Invariants:
- A server is used only after it proved that it has the key; the key is sent to no other address.
- While none serves, starts of sandboxes wait, and why they wait is a line of progress.
- When none will serve again, whoever waits gets RuntimeLost; the run saves its state and ends with exit status 1.
- Signs of life come from a thread of their own: a busy run is not a dead one.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from swe_rl.config.choices import RuntimeKind
from swe_rl.config.schema import Config
from swe_rl.errors import RunError
from swe_rl.hardware.rendezvous import Beating, Meeting, ServerRecord, TrainerRecord, meets
from swe_rl.hardware.runtime_watch import Act, Decision, ServerWatch
from swe_rl.hardware.slurm.companion import job_key
from swe_rl.hardware.slurm.jobs import JobState, Queue, SlurmError, allocation, cancel, has_slurm, job_state, submit
from swe_rl.logger.disk import DiskError
from swe_rl.run.session import Session
from swe_rl.sandbox.remote import wire
from swe_rl.sandbox.remote.fleet import RuntimeFleet, ServerAddress

_HEALTH_S = 5.0
_ASK_QUEUE_S = 10.0


class RuntimeLost(RunError):
    """No sandbox server is left, and none will come."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """What the keeper asks of SLURM; `here`: whether there is one."""

    here: Callable[[], bool] = has_slurm
    state: Callable[[str], JobState] = job_state
    submit: Callable[[Path], str] = submit
    cancel: Callable[[str], None] = cancel


@dataclass(slots=True)
class _Node:
    watch: ServerWatch
    decision: Decision = field(default_factory=lambda: Decision(Act.WAIT))
    record: ServerRecord | None = None
    job: JobState | None = None
    asked_s: float = float("-inf")


@contextlib.asynccontextmanager
async def kept_fleet(config: Config, session: Session) -> AsyncIterator[RuntimeFleet]:
    """Sandboxes of the servers that `runtime.shared_dir` names, for the time of the block."""
    assert meets(config) and config.runtime.shared_dir is not None
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
        session: Session,
        fleet: RuntimeFleet,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._config = config
        self._meeting = meeting.create()
        self._session = session
        self._fleet = fleet
        self._scheduler = scheduler or Scheduler()
        self._nodes = [_Node(ServerWatch(number, config.runtime)) for number in range(config.runtime.nodes)]
        self._beating = Beating(meeting.write_trainer, _record(session.folder.name))
        self._said: dict[int, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="runtime-heartbeat", daemon=True)
        self._task: asyncio.Task[None] | None = None
        self._http: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Raises DiskError for a folder where nobody can be met."""
        self._beating.beat()
        self._thread.start()
        self._task = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """The run is over: the servers learn it at once, and what a dead one left in the folder goes away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._fleet.close()
        if self._http is not None:
            await self._http.close()
        self._ended.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        self._meeting.drop_trainer(self._beating.record.trainer)
        for node in self._nodes:
            if node.record is not None and node.decision.act is not Act.USE:
                self._meeting.drop_server(node.record)
        self._meeting.leave()

    def _beat(self) -> None:
        while not self._ended.wait(self._config.runtime.heartbeat_s):
            with contextlib.suppress(DiskError):  # the disk may be back at the next one; a server's patience is longer
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
            except Exception as error:  # of ours: nobody must wait for a watch that has ended
                self._fleet.give_up(RuntimeLost(f"sandbox servers are not watched any more: {error!r}"))
                raise
            await asyncio.sleep(min(1.0, self._config.runtime.heartbeat_s))

    async def _look(self) -> None:
        """Raises RendezvousError for servers of another version."""
        records = {one.node: one for one in await asyncio.to_thread(self._meeting.servers)}
        for number in sorted(records.keys() - set(range(len(self._nodes)))):  # more than this run asked for: welcome
            if number == len(self._nodes):
                self._nodes.append(_Node(ServerWatch(number, self._config.runtime)))
        await asyncio.gather(*(self._look_at(number, records.get(number)) for number in range(len(self._nodes))))
        alive = [node.record for node in self._nodes if node.decision.act is Act.USE and node.record is not None]
        key = self._meeting.known_key()
        self._fleet.use(ServerAddress(one.server, one.url, one.slots, key) for one in alive)
        if not alive:
            self._session.status.heartbeat()
        if all(node.decision.act is Act.LOST for node in self._nodes):
            self._fleet.give_up(self._lost())

    async def _look_at(self, number: int, record: ServerRecord | None) -> None:
        node, now_s = self._nodes[number], asyncio.get_running_loop().time()
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

    def _how_to(self, node: _Node) -> str:
        return f"nobody has started it: {self._by_hand()}" if node.job is None else ""

    async def _answers(self, record: ServerRecord) -> bool:
        key, challenge = self._meeting.known_key(), secrets.token_hex(16)
        assert self._http is not None
        if key is None:
            return False
        try:
            async with self._http.get(f"{record.url}/health", params={"challenge": challenge}) as response:
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return False
        return isinstance(answer, dict) and answer.get("proof") == wire.proof_of(key, record.server, challenge)

    async def _ask_queue(self, number: int, node: _Node, record: ServerRecord | None, now_s: float) -> None:
        """Not every second: a controller has others to answer."""
        if not self._scheduler.here():
            return
        job_id = self._meeting.jobs().get(job_key(number)) or (record.job_id if record is not None else None)
        if job_id is not None and now_s - node.asked_s >= min(_ASK_QUEUE_S, self._config.runtime.heartbeat_s):
            node.asked_s = now_s
            node.job = await asyncio.to_thread(self._scheduler.state, job_id)

    def _can_submit(self, number: int) -> bool:
        mine = self._config.runtime.kind is RuntimeKind.job
        return mine and self._scheduler.here() and self._meeting.script(number).is_file()

    async def _restart(self, number: int, node: _Node) -> None:
        """Its old job first, so that there are never two."""
        node.watch.restarted()
        old = self._meeting.jobs().get(job_key(number))
        try:
            if old is not None:
                await asyncio.to_thread(self._scheduler.cancel, old)
            new = await asyncio.to_thread(self._scheduler.submit, self._meeting.script(number))
        except SlurmError as error:
            self._session.progress.message(f"sandbox server {number}: {error}")
            node.job, node.asked_s = JobState(Queue.UNKNOWN), asyncio.get_running_loop().time()  # not at once again
            return
        self._meeting.note_jobs(**{job_key(number): new})
        node.job, node.asked_s = None, float("-inf")
        self._session.record("runtime_restarted", {"node": number, "job": new, "reason": node.decision.words})
        self._session.progress.message(
            f"sandbox server {number} is started again as job {new} "
            f"({node.watch.restarts} of {self._config.runtime.max_restarts}): {node.decision.words}"
        )

    def _say(self, number: int, node: _Node) -> None:
        """Each state once: a lasting line of the console and of run.log."""
        words, record = node.decision.words, node.record
        if node.decision.act is Act.USE and record is not None:
            words = f"sandbox server {number}: {record.url}, {record.slots} places" + _of_job(record)
        elif node.decision.act is Act.RESTART:
            return
        if words and self._said.get(number) != words.partition(" for ")[0]:
            self._said[number] = words.partition(" for ")[0]
            self._session.progress.message(words)

    def _lost(self) -> RuntimeLost:
        words = "; ".join(node.decision.words for node in self._nodes)
        again = f"sbatch {self._meeting.script(0)}" if self._can_submit(0) else self._by_hand()
        return RuntimeLost(
            f"No sandbox server is left: {words}. What they said last is in {self._meeting.folder} "
            f"({self._meeting.log(0).name}). Start one with `{again}` and go on with trainer.resume=auto."
        )

    def _by_hand(self) -> str:
        return f"python -m swe_rl job=runtime runtime=job runtime.shared_dir={self._meeting.folder}"


def _of_job(record: ServerRecord) -> str:
    return f" on {record.host}" + (f" (job {record.job_id})" if record.job_id else "")


def _record(run: str) -> TrainerRecord:
    here = allocation(os.environ)
    return TrainerRecord(
        trainer=secrets.token_hex(8),
        run=run,
        host=here.node if here and here.node else socket.gethostname(),
        job_id=here.job_id if here else None,
        pid=os.getpid(),
    )
