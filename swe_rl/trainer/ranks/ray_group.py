"""Runs ranks as actors of a Ray cluster, on one placement group, so that they may be on several nodes.

Invariants:
- The requests and the ranks' code are those of processes of this host; only the way there differs.
- Ray decides which GPU a rank has; one that an engine of this run has is refused.
- Every rank sees the folder where the run writes, or none is started to work.
- One `take` is always under way: it brings the next answer, or the news of the actor's end.
- Moments that a rank names are told in this host's clock.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from swe_rl.config.folders import PACKAGE
from swe_rl.errors import one_line
from swe_rl.hardware.ray_cluster import CPU, GPU, RayCluster, RayClusterError, RayNode, connect_cluster
from swe_rl.layout.placement import PlacementError, rank_nodes, rank_places, ranks_together
from swe_rl.trainer.ranks.link import RankEnd, RankLink, last_words
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.ray_rank import GROUPS, RankHome, RayRank, describe_versions
from swe_rl.trainer.trainer import TrainerError

# Ray takes this long to notice the loss of a node.
_WORD_S = 12.0
# Ray takes this long at most to end an actor and to tell.
_GONE_S = 20.0
_DETAIL = ("Worker exit detail:", "The actor died because")
_ADVICE = "Some common causes include"


class RayLink:
    """One rank as a Ray actor."""

    def __init__(self, rank: int, actor: Any, node: RayNode, log: Path | None) -> None:
        self.rank = rank
        self.actor = actor
        self.node = node
        self.pid = 0
        self._log = log
        # Added to the rank's clock, it gives ours.
        self._clock_s = 0.0
        # This is Ray's word on the actor's end.
        self._over: str | None = None
        self._serving: Any = None
        self.answer = self._call("take", "take")

    @property
    def is_here(self) -> bool:
        return self.node.here

    def home(self, mark: Path | None) -> Any:
        """Returns a reference to its RankHome."""
        return self._call("ask", "home", mark, self.node.address)

    def meeting_point(self) -> Any:
        """Returns a reference to host:port."""
        return self._call("ask", "meeting_point", self.node.address)

    def settle(self, home: RankHome) -> None:
        """Notes where it is, and compares clocks."""
        import ray

        self.pid = home.pid
        before = time.monotonic()
        there = ray.get(self._call("ask", "clock_s"))
        self._clock_s = (before + time.monotonic()) / 2 - there

    def begin(self, setup: RankSetup) -> None:
        self._serving = self._call("serve", "serve", setup)

    def send(self, request: tuple[str, tuple[Any, ...], Mapping[str, Any]]) -> None:
        """Posts a request without waiting; an actor that is gone is met by `recv`."""
        self._call("post", "post", request)

    def recv(self) -> Any:
        import ray
        from ray.exceptions import RayError

        if self._over is not None:
            raise EOFError(self._over)
        try:
            answer = ray.get(self.answer)
        except RayError as error:
            self._over = _ray_reason(self._last_word(error))
            raise EOFError(self._over) from error
        self.answer = self._call("take", "take")
        return answer

    def recv_bytes_into(self, buffer: bytearray) -> int:
        content = self.recv()
        buffer[:] = content.data
        return len(buffer)

    def is_alive(self) -> bool:
        """Tells whether the rank serves: one that serves no more, or whose actor is gone, is not alive."""
        return self._over is None and not (self._serving is not None and _is_ready(self._serving))

    def reported(self, report: Sequence[Any]) -> RankEnd:
        end = RankEnd.reported(self.rank, report)
        return replace(end, reason=f"{end.reason} (on node {self.node.name})", at_s=end.at_s + self._clock_s)

    def ended(self, when: str) -> RankEnd | None:
        """Returns how the actor ended, if it did.

        One that went without a word was killed, or crashed: it comes before all that others then say of it.
        """
        try:
            while self._over is not None or _is_ready(self.answer):
                answer = self.recv()
                if isinstance(answer, tuple) and answer[0] == "failed":
                    return self.reported(answer[1:])
        except EOFError:
            return RankEnd(self.rank, self._end_of_actor(when), float("-inf"))
        return None

    def kill(self) -> None:
        import ray

        # Ray has ended it, or is gone itself.
        with suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def end(self, patience_s: float) -> None:
        import ray

        if not ray.is_initialized():
            return
        # Ray may say anything of an actor that is gone; gone is what it shall be.
        with suppress(Exception):
            if patience_s and self._serving is not None:
                self._call("post", "hang_up")
                ray.wait([self._serving], timeout=patience_s)
        self.kill()
        with suppress(Exception):
            ray.wait([self.answer], timeout=_GONE_S)

    def _call(self, group: str, method: str, *arguments: Any) -> Any:
        return getattr(self.actor, method).options(concurrency_group=group).remote(*arguments)

    def _last_word(self, error: Exception) -> Exception:
        """Returns the last that Ray says of an actor.

        One that merely cannot be reached is given up as well, but Ray may soon know what became of it.
        """
        import ray
        from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

        until = time.monotonic() + _WORD_S
        while isinstance(error, ActorUnavailableError) and time.monotonic() < until:
            time.sleep(_LOOK_S)
            try:
                ray.get(self._call("ask", "clock_s"), timeout=_WORD_S)
            except GetTimeoutError:
                break
            except RayError as later:
                error = later
        return error

    def _end_of_actor(self, when: str) -> str:
        who = "its actor"
        if self.pid:
            who = f"its actor on node {self.node.name}, process {self.pid},"
        return f"{who} died {when} without a word; Ray says: {self._over}{last_words(self._log)}"


def _is_ready(reference: Any) -> bool:
    import ray

    return bool(ray.wait([reference], timeout=0)[0])


def _ray_reason(error: Exception) -> str:
    """Returns the part of Ray's message that tells what happened."""
    text = " ".join(str(error).split())
    for mark in _DETAIL:
        text = text.partition(mark)[2] or text
    return one_line(text.partition(_ADVICE)[0].strip(" ."))


# The resources of an actor that was just ended are free within this time; a cluster that stays full is an error after
# it.
_FREE_S = 15.0
_LOOK_S = 0.5
# Ray has this long to start the actors' processes.
_START_S = 120.0
# Users set variables with these beginnings for the libraries of a rank, wherever it runs. Ray's processes have the
# environment of `ray start`, so these are handed on.
_HANDED_ON = ("HF_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "NCCL_", "GLOO_", "FI_", "OMP_")


class RayRanks:
    """Ranks as actors of a Ray cluster."""

    def __init__(
        self,
        address: str,
        *,
        environment: Mapping[str, str] | None = None,
        engine_gpus: frozenset[str] = frozenset(),
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Keeps the plan. `address` is hardware.ray_address. `environment` is for the ranks.

        `engine_gpus` are this node's GPUs, as a process of CUDA calls them, that Ray must not hand out. `say` is told
        where the ranks are.
        """
        self._address = address
        self._environment = dict(environment or {})
        self._engine_gpus = engine_gpus
        self._say = say or _say_nothing
        self._cluster: RayCluster | None = None

    def launch(self, setup: RankSetup) -> Iterator[RayLink]:
        """Raises RayClusterError, PlacementError, TrainerError."""
        setup = _with_absolute_paths(setup)
        self._cluster = connect_cluster(self._address)
        nodes = self._nodes(self._cluster, setup)
        group = self._cluster.reserve(nodes, _resource_kind(setup))
        links = []
        for rank, node in enumerate(nodes):
            links.append(RayLink(rank, self._actor(group, rank, setup), node, setup.log(rank)))
            yield links[-1]
        self._begin(links, setup)

    def wait(self, links: Sequence[RankLink], timeout_s: float) -> list[RankLink]:
        import ray

        answers = {link.answer: link for link in links if isinstance(link, RayLink)}
        ready, _ = ray.wait(list(answers), num_returns=len(answers), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = ray.wait(list(answers), num_returns=1, timeout=timeout_s, fetch_local=False)
        return [answers[reference] for reference in ready]

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _nodes(self, cluster: RayCluster, setup: RankSetup) -> list[RayNode]:
        """Returns a node for each rank. What an earlier run, or an earlier start of this one, still holds is waited
        for.
        """
        until = time.monotonic() + _FREE_S
        resource = _resource_kind(setup)
        together = ranks_together(setup.world, setup.sp, setup.shard_ranks)
        while True:
            nodes = cluster.nodes()
            free = [node.free[resource] for node in nodes]
            try:
                return [nodes[index] for index in rank_nodes(nodes, free, setup.world, together, resource)]
            except PlacementError:
                places = rank_places([node.units[resource] for node in nodes], together)
                if places < setup.world or time.monotonic() > until:
                    raise
            time.sleep(_LOOK_S)

    def _actor(self, group: Any, rank: int, setup: RankSetup) -> Any:
        """Returns an actor that is not told to work yet.

        It imports the very package that this process runs, where its node sees that folder.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        package = str(PACKAGE.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        gpu = _resource_kind(setup) == GPU
        # The overloads of `ray.remote` know of no concurrency groups.
        remote: Any = ray.remote
        make = remote(
            num_cpus=0 if gpu else 1,
            num_gpus=1 if gpu else 0,
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups=GROUPS,
        )
        return (
            make(RayRank)
            .options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
                runtime_env={"env_vars": {"PYTHONPATH": path}},
            )
            .remote(self._environment)
        )

    def _begin(self, links: Sequence[RayLink], setup: RankSetup) -> None:
        import ray

        with _marker_file(setup.logs) as mark, _raise_trainer_error():
            homes: list[RankHome] = ray.get([link.home(mark) for link in links], timeout=_START_S)
        for link, home in zip(links, homes, strict=True):
            self._check(link, home, setup)
        with _raise_trainer_error():
            for link, home in zip(links, homes, strict=True):
                link.settle(home)
            address = setup.address or ray.get(links[0].meeting_point(), timeout=_START_S)
        if setup.device == "cuda":
            gpus = tuple(home.gpus for home in homes)
        else:
            gpus = ()
        for link in links:
            link.begin(replace(setup, rank=link.rank, address=address, gpus=gpus))
        self._say("; ".join(f"rank {link.rank} on node {link.node.name}" for link in links))

    def _check(self, link: RayLink, home: RankHome, setup: RankSetup) -> None:
        """Raises RayClusterError where a rank's place is not as the run needs it."""
        if home.versions != describe_versions():
            raise RayClusterError(
                f"Node {link.node.name} of the Ray cluster has {home.versions}; this run has "
                f"{describe_versions()}. Install the "
                "same on every node, or start Ray there from this environment."
            )
        if not home.sees:
            raise RayClusterError(
                f"Node {link.node.name} of the Ray cluster does not see {setup.logs}: ranks write checkpoints and logs "
                "into the run's folder. Set paths.outputs to a folder that all nodes share under one path."
            )
        if link.node.here and self._engine_gpus & set(home.gpus.split(",")):
            raise RayClusterError(
                f"Ray gave rank {link.rank} GPU {home.gpus} of this node, which an engine of this run has. Start Ray "
                "here with what is left: CUDA_VISIBLE_DEVICES=4,5,6,7 ray start ... where engines have 0 to 3."
            )


def handed_on(environment: Mapping[str, str], env_vars: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of this process that ranks elsewhere get: those of their libraries, and
    hardware.env_vars.
    """
    return {key: value for key, value in environment.items() if key.startswith(_HANDED_ON)} | dict(env_vars)


def _with_absolute_paths(setup: RankSetup) -> RankSetup:
    """Returns the setup with absolute paths: an actor does not start in this process's folder."""
    model = setup.model
    algo = setup.algo
    if algo.teacher:
        algo = replace(algo, teacher=_absolute_path(algo.teacher))
    return replace(setup, model=replace(model, path=_absolute_path(model.path)), algo=algo)


def _absolute_path(path: str) -> str:
    if Path(path).is_dir():
        return str(Path(path).absolute())
    return path


def _resource_kind(setup: RankSetup) -> str:
    if setup.device == "cuda":
        return GPU
    return CPU


@contextmanager
def _raise_trainer_error() -> Iterator[None]:
    """Raises TrainerError where an actor does not come up."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise TrainerError(
            f"The Ray cluster did not start the trainer's ranks within {_START_S:.0f} s: {one_line(error)}. Its own "
            "logs are below the temporary folder of `ray start` on each node."
        ) from error


@contextmanager
def _marker_file(folder: Path | None) -> Iterator[Path | None]:
    """Yields a file of a name that nobody else has, in `folder`, for others to look for."""
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder.absolute() / f".seen-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _say_nothing(_: str) -> None:
    return None
