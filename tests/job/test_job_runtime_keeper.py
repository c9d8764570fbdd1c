"""A run's side of two jobs without processes: real servers over scripted sandboxes, and a SLURM that is played."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from swe_rl.config.compose import compose
from swe_rl.hardware.rendezvous import Meeting, ServerRecord
from swe_rl.hardware.slurm.jobs import JobState, Queue, SlurmError
from swe_rl.run.runtime_keeper import RuntimeKeeper, RuntimeLost, Scheduler
from swe_rl.sandbox.remote.fleet import RuntimeFleet
from swe_rl.sandbox.remote.server import RuntimeServer, ServerOptions
from swe_rl.sandbox.sandbox import Workspace
from tests.support.scripted_sandbox import ScriptedProvider

IMAGE = Workspace(image="a")
WAITS, RUNS = JobState(Queue.WAITS, "PENDING", "Resources"), JobState(Queue.RUNS, "RUNNING")
GONE = JobState(Queue.GONE, "FAILED")


class Slurm:
    """Jobs by id; `on_submit` starts what the script would."""

    def __init__(self):
        self.jobs, self.submitted, self.cancelled, self.refuses = {}, [], [], False

    def state(self, job_id):
        return self.jobs.get(job_id, GONE)

    def submit(self, script):
        if self.refuses:
            raise SlurmError("sbatch was refused: no")
        self.submitted.append(script.name)
        job_id = str(100 + len(self.submitted))
        self.jobs[job_id] = WAITS
        return job_id

    def scheduler(self, here=True):
        return Scheduler(lambda: here, self.state, self.submit, self.cancelled.append)


class Stage:
    """A meeting with servers that come and go, and a keeper that watches them."""

    def __init__(self, folder, monkeypatch, *overrides, here=True):
        monkeypatch.setattr("swe_rl.run.runtime_keeper._ASK_QUEUE_S", 0.0)
        self.config = compose(
            [
                "runtime=job",
                "runtime.heartbeat_s=0.05",
                "runtime.lease_s=0.5",
                "runtime.ready_timeout_s=0.6",
                *overrides,
            ]
        ).config
        self.folder, self.meeting, self.slurm = folder, Meeting(folder / "meet").create(), Slurm()
        for node in range(self.config.runtime.nodes):
            self.meeting.script(node).write_text("#!/bin/bash\n")
        self.said, self.events, self.servers = [], [], {}
        session = SimpleNamespace(
            folder=SimpleNamespace(name="run"),
            progress=SimpleNamespace(message=self.said.append),
            status=SimpleNamespace(heartbeat=lambda: None),
            record=lambda event, fields: self.events.append((event, fields)),
        )
        self.fleet = RuntimeFleet(self.config.sandbox, renew_s=0.05, pause_s=0.001)
        self.keeper = RuntimeKeeper(self.config, self.meeting, session, self.fleet, self.slurm.scheduler(here))

    async def __aenter__(self):
        self.keeper.start()
        return self

    async def __aexit__(self, *_):
        await self.keeper.close()
        for name in list(self.servers):
            await self.servers.pop(name)[0].close()

    async def serve(self, name, node=0, job_id=None, key=None):
        key = key or self.meeting.key()
        options = ServerOptions(slots=4, lease_s=60.0, key=key, name=name)
        server = RuntimeServer(ScriptedProvider(lambda asked: name), self.folder / name, options)
        record = ServerRecord(name, await server.start(), "n1", 4, node=node, job_id=job_id)
        self.servers[name] = server, record
        self.meeting.write_server(record)

    async def kill(self, name):
        await self.servers.pop(name)[0].close()

    async def used(self, timeout_s=5.0):
        """Which server a start of now ends up at."""
        sandbox = await asyncio.wait_for(self.fleet.create(IMAGE, owner="x"), timeout_s)
        output = (await sandbox.exec("a", timeout_s=5)).output
        await sandbox.close()
        return output

    async def until(self, holds, timeout_s=5.0):
        for _ in range(int(timeout_s / 0.01)):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.said)


async def test_it_waits_for_the_queue_as_long_as_it_takes_and_says_why(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch) as stage:
        stage.meeting.note_jobs(trainer="1", runtime0="7")
        stage.slurm.jobs["7"] = WAITS
        start = asyncio.ensure_future(stage.used(30.0))
        await asyncio.sleep(1.0)  # more than runtime.ready_timeout_s
        assert not start.done() and stage.said == ["sandbox server 0 is in the queue, job PENDING (Resources)"]
        stage.slurm.jobs["7"] = RUNS
        await stage.serve("a", job_id="7")
        assert await start == "a"
        assert stage.slurm.submitted == [] and stage.said[-1].endswith("4 places on n1 (job 7)")


async def test_a_dead_server_is_cancelled_and_submitted_again(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch) as stage:
        stage.meeting.note_jobs(runtime0="7")
        stage.slurm.jobs["7"] = RUNS
        await stage.serve("a", job_id="7")
        assert await stage.used() == "a"
        await stage.kill("a")
        stage.slurm.jobs["7"] = GONE
        await stage.until(lambda: stage.slurm.submitted)
        assert stage.slurm.submitted == ["runtime_0.sh"] and stage.slurm.cancelled == ["7"]
        assert stage.meeting.jobs() == {"runtime0": "101"}
        assert stage.events[0] == (
            "runtime_restarted",
            {"node": 0, "job": "101", "reason": "the job of sandbox server 0 has ended"},
        )
        await stage.serve("b", job_id="101")
        assert await stage.used() == "b"


async def test_after_its_restarts_whoever_waits_learns_why(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch, "runtime.max_restarts=2") as stage:
        stage.meeting.note_jobs(runtime0="7")
        start = asyncio.ensure_future(stage.fleet.create(IMAGE, owner="x"))
        await stage.until(lambda: len(stage.slurm.submitted) == 1)
        stage.slurm.jobs["101"] = GONE
        await stage.until(lambda: len(stage.slurm.submitted) == 2)
        stage.slurm.jobs["102"] = GONE
        with pytest.raises(RuntimeLost, match=r"started 2 times anew.*sbatch .*runtime_0.sh.*trainer.resume=auto"):
            await asyncio.wait_for(start, 10)


async def test_a_refused_submission_counts_too(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch, "runtime.max_restarts=1") as stage:
        stage.slurm.refuses = True
        stage.meeting.note_jobs(runtime0="7")
        with pytest.raises(RuntimeLost):
            await asyncio.wait_for(stage.fleet.ready(), 10)
        assert stage.said[0] == "sandbox server 0: sbatch was refused: no"


async def test_without_slurm_somebody_may_start_it_for_a_while(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch, here=False) as stage:
        await asyncio.sleep(0.2)
        await stage.serve("a")
        assert await stage.used() == "a"
        await stage.kill("a")
        with pytest.raises(RuntimeLost, match="job=runtime runtime=job runtime.shared_dir="):
            await asyncio.wait_for(stage.fleet.create(IMAGE, owner="x"), 10)
        assert "nobody has started it" in stage.said[0]


async def test_one_of_two_servers_is_enough(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch, "runtime.nodes=2", "runtime.max_restarts=0") as stage:
        stage.meeting.note_jobs(runtime0="7", runtime1="8")
        stage.slurm.jobs |= {"7": GONE, "8": RUNS}
        await stage.serve("b", node=1, job_id="8")
        assert await stage.used() == "b"
        assert any("job of sandbox server 0 has ended" in words for words in stage.said)
        await stage.kill("b")
        stage.slurm.jobs["8"] = GONE
        with pytest.raises(RuntimeLost):
            await asyncio.wait_for(stage.fleet.create(IMAGE, owner="x"), 10)


async def test_an_address_without_the_key_gets_no_key(tmp_path, monkeypatch):
    """A file that is old, and a port that is somebody else's by now."""
    async with Stage(tmp_path, monkeypatch, here=False) as stage:
        stage.meeting.key()
        await stage.serve("a", key="another-key")
        with pytest.raises(RuntimeLost, match="no answer from http"):
            await asyncio.wait_for(stage.fleet.ready(), 10)
        assert stage.servers["a"][0].silence_s is None  # nobody asked it anything


async def test_another_version_is_refused_at_once(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch, here=False) as stage:
        await stage.serve("a")
        stage.meeting.write_server(replace(stage.servers["a"][1], protocol=9))
        with pytest.raises(Exception, match="protocol 9"):
            await asyncio.wait_for(stage.fleet.ready(), 10)


async def test_the_run_gives_signs_of_life_and_takes_its_record_along(tmp_path, monkeypatch):
    async with Stage(tmp_path, monkeypatch, here=False) as stage:
        await stage.serve("a")
        assert await stage.used() == "a"
        [first] = stage.meeting.trainers()
        await stage.until(lambda: stage.meeting.trainers()[0].beat > first.beat)
        await stage.kill("a")
        await stage.until(lambda: "does not answer any more" in stage.said[-1])
    assert stage.meeting.trainers() == [] and stage.meeting.servers() == []  # the dead one's, too
    assert stage.meeting.known_key() is None


async def test_the_record_of_a_server_that_dies_last_goes_with_the_run(tmp_path, monkeypatch):
    """The watch's last look saw it alive. A server that lives keeps its record, and the folder."""
    async with Stage(tmp_path, monkeypatch, "runtime.nodes=2") as stage:
        await stage.serve("a")
        await stage.serve("b", node=1)
        await stage.until(lambda: all(node.record is not None for node in stage.keeper._nodes))
        monkeypatch.setattr(stage.keeper, "_look", lambda: asyncio.sleep(60))
        await asyncio.sleep(0.1)
        await stage.kill("a")
        servers, stage.servers = stage.servers, {}
    assert [record.server for record in stage.meeting.servers()] == ["b"]
    await servers["b"][0].close()
