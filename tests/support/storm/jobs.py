"""The jobs that the storm kills: the main job with small numbers, by what it is made of.

Invariants:
- Start and resume are the same words (`trainer.resume=auto`); nothing but the folders differs between two runs.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swe_rl.dataset.records import read_instances, write_instances
from swe_rl.env.bugs.env import DATA
from swe_rl.facts.server_arguments import VLLM_COMMAND

TENSOR_DELAY_S = 0.03  # an update of the tiny model takes most of a second
_VOCABULARY = 1536  # of the tiny model
_SMALL = (
    "trainer.seed=1",  # with which groups differ in their rewards, so that the policy moves
    "trainer.steps=3",
    "rollout.prompts_per_step=2",
    "rollout.n=3",
    "rollout.eval_n=1",
    "trainer.checkpoint_every_steps=1",
    "trainer.keep_checkpoints=1",
    "trainer.num_threads=1",
    "rollout.agent_timeout_s=3000",  # a machine that does other things at the same time changes no outcome
    "rollout.command_timeout_s=600",
    "rollout.grade_timeout_s=900",
)


@dataclass(frozen=True, slots=True)
class Job:
    """`repeats`: what it samples depends on the seed alone. `fake`: its engines are programs that invent tokens.
    `streams`: which step trains a group depends on timing. `receives`: its servers take tensors, one after another."""

    name: str
    targets: tuple[str, ...]
    words: tuple[str, ...] = ()
    repeats: bool = True
    fake: bool = False
    receives: bool = False
    streams: bool = False
    serves_sandboxes: bool = False
    on_nodes: bool = False  # of a held SLURM job: an engine is a step on the second one
    patience_s: float = 900.0  # for one start
    points: tuple[str, ...] = field(default=())  # that only this job comes to, or that it comes to elsewhere


_SERVERS = ("engine=vllm", "layout.engines=2", "trainer.check_weights=false", "engine.max_restarts=10")
_RANKS = ("layout=local2", "trainer.collective_timeout_s=60", "trainer.max_restarts=1")
_STREAM = ("rollout.mode=stream", "trainer.steps=4", "trainer.eval_every_steps=2")
_MEMORY = (*_RANKS, *_SERVERS, "trainer.weight_sync=nccl")  # without a GPU over gloo
_GPU = (
    *("engine=vllm", "engine.enforce_eager=true", "engine.max_restarts=10", "trainer.max_restarts=3"),
    *("layout=dp4", "layout.engines=1", "layout.trainer_gpus=1", "layout.sequence_parallel=1"),
    *("trainer.weight_sync=nccl", "trainer.collective_timeout_s=60", "trainer.compile=false", "sandbox.isolation=none"),
)
_NODES = ("hardware.nodes=2", "hardware.gpus_per_node=1", "layout.colocated=false", "layout.trainer_gpus=0")
JOBS = (
    Job("embedded", ("driver", "store", "guard", "grader")),
    Job("servers", ("engine",), _SERVERS, repeats=False, fake=True, points=("weights_written",)),
    Job("cpu_build", ("engine_cpu",), _SERVERS, repeats=False),
    Job(
        "ranks",
        ("rank",),
        _RANKS,
        points=("checkpoint_files", "checkpoint_aside", "checkpoint_named", "checkpoint_discarded"),
    ),
    Job("nodes", ("step",), (*_RANKS, *_SERVERS, *_NODES), repeats=False, fake=True, on_nodes=True),
    Job("runtime", ("runtime",), ("runtime=external", "runtime.containers=process"), serves_sandboxes=True),
    Job(
        "stream",
        ("stream_driver", "stream_store", "stream_grader"),
        _STREAM,
        repeats=False,
        streams=True,
        points=(
            *("groups_taken", "group_complete", "group_queued", "queue_pruned", "trained", "weights_synced"),
            *("step_recorded", "checkpoint_named", "eval_trajectories_written", "eval_recorded"),
        ),
    ),
    Job(
        "stream_servers",
        ("stream_engine",),
        (*_STREAM, *_SERVERS),
        repeats=False,
        fake=True,
        streams=True,
        points=("weights_written",),
    ),
    Job(
        "memory",
        ("memory_driver", "memory_engine", "memory_rank"),
        _MEMORY,
        repeats=False,
        fake=True,
        receives=True,
    ),
    Job(
        "stream_memory",
        ("stream_memory_driver", "stream_memory_engine", "stream_memory_rank"),
        (*_STREAM, *_MEMORY),
        repeats=False,
        fake=True,
        receives=True,
        streams=True,
    ),
    Job("gpu", ("gpu_driver", "gpu_engine", "gpu_rank"), (*_GPU, "trainer.steps=6"), repeats=False),
    Job(
        "stream_gpu",
        ("stream_gpu_driver", "stream_gpu_engine", "stream_gpu_rank"),
        (*_STREAM, *_GPU, "trainer.steps=6"),
        repeats=False,
        streams=True,
    ),
    Job("stream_ranks", ("stream_rank",), (*_STREAM, *_RANKS), repeats=False, streams=True),
)
OF_TARGET = {target: job for job in JOBS for target in job.targets}
OF_NAME = {job.name: job for job in JOBS}


def write_data(folder: Path) -> Path:
    """Four instances to train on and one that is held out."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        write_instances(folder / "heldout.jsonl", read_instances(DATA / "heldout.jsonl")[:1])
        write_instances(folder / "train.jsonl", read_instances(DATA / "train.jsonl")[:4])
    return folder


def words(job: Job, root: Path, data: Path) -> list[str]:
    """Of the command line, for start and resume alike."""
    meeting = _meeting(root) if job.serves_sandboxes else ()
    shared = (f"hardware.shared_paths=[{root}]",) if job.on_nodes else ()  # else /tmp is one node's own
    return [*_SMALL, *job.words, *meeting, *shared, *_places(root), f"env.dataset={data}", "trainer.resume=auto"]


def server_words(root: Path, data: Path) -> list[str]:
    """Of the sandbox server beside a run."""
    served = ["runtime.containers=process", "runtime.cpus_per_node=16", "sandbox=process"]
    return ["job=runtime", *_meeting(root), *served, *_places(root / "server"), f"env.dataset={data}"]


def environment(job: Job, root: Path) -> Mapping[str, str]:
    """Of a run's processes; what makes temporary files does so below `root`."""
    (root / "tmp").mkdir(parents=True, exist_ok=True)
    found = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TMPDIR": str(root / "tmp")}
    found |= {"XDG_CACHE_HOME": str(root / "cache")}
    if job.fake:
        found[VLLM_COMMAND] = f"{shlex.quote(sys.executable)} -m tests.support.fake_vllm.server"
        taking = {"receives": True, "tensor_delay_s": TENSOR_DELAY_S} if job.receives else {}
        found["FAKE_VLLM"] = json.dumps({"vocab_size": _VOCABULARY, "token_delay_s": 0.004, **taking})
    return found


def _meeting(root: Path) -> tuple[str, ...]:
    return f"runtime.shared_dir={root / 'meeting'}", "runtime.heartbeat_s=1", "runtime.lease_s=10"


def _places(root: Path) -> list[str]:
    return [f"paths.outputs={root / 'outputs'}", f"paths.scratch={root / 'scratch'}"]
