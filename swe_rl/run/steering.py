"""Keeps as many trajectories under way as the engines carry, where `rollout.concurrency=auto`.

Once a second it looks at engines, gateway and places, asks the controller (router/concurrency.py), and resizes the
places of the rollouts under way. What changes is an event of the run, and a part of the step's record, from which a
resumed run goes on.

Invariants:
- No trajectory is ended: fewer places are felt as trajectories end.
- While new weights are on their way, and right after, nothing is concluded: caches are empty then for another reason.
- With `rollout.mode=stream` the flow bounds what is begun and not trained, whatever the number of places; so staleness
  stays as it is.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swe_rl.engine.engine import Engine, EngineState
from swe_rl.facts.concurrency import Bounds
from swe_rl.gateway.server import Gateway
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.rollout.places import Places
from swe_rl.router.concurrency import LOOK_S, ConcurrencyController, Look, record_of

Record = Callable[[str, Mapping[str, object]], None]
# The step's record has the controller's state under this key, and the limit alone under the other, for figures.
STATE_KEY = "concurrency_state"
LIMIT_KEY = "concurrency"
# People are told of a limit that is so much larger or smaller than the last one that they were told of.
_WORTH_SAYING = 1.25


class Steering:
    """Steers the places of a run's rollouts. `record` takes its events, and `say` lines for people."""

    def __init__(
        self,
        bounds: Bounds,
        engines: Sequence[Engine],
        gateway: Gateway,
        record: Record,
        say: Callable[[str], None],
    ) -> None:
        self._controller = ConcurrencyController(bounds)
        self._engines = engines
        self._gateway = gateway
        self._record = record
        self._say = say
        self._places = Places(self._controller.limit)
        # Places that were given back before these were made.
        self._ended_before = 0
        self._syncs = 0
        self._said = self._controller.limit

    def make_places(self) -> Places:
        """Returns places for rollouts that begin now; those before them are steered no more."""
        self._ended_before += self._places.given_back
        self._places = Places(self._controller.limit)
        return self._places

    def facts(self) -> dict[str, Any]:
        """Returns what a step's record has of it."""
        return {LIMIT_KEY: self._controller.limit, STATE_KEY: self._controller.state()}

    def resume(self, folder: RunFolder) -> None:
        """Goes on from the newest step's record, if there is one that says where."""
        states = [record[STATE_KEY] for record in iter_jsonl(folder.steps_jsonl) if STATE_KEY in record]
        if states:
            try:
                self._controller.restore(states[-1])
            except (KeyError, TypeError, ValueError):
                self._say(
                    "the record of the last step does not say how many trajectories were under way: it begins anew"
                )
        self._said = self._controller.limit
        self._places.resize(self._controller.limit)

    async def steer(self) -> None:
        """Never returns. Raises DiskError."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Looks once, and resizes the places. Raises DiskError."""
        placement = self._gateway.placement
        if placement.syncing_now or placement.syncs != self._syncs:
            self._syncs = placement.syncs
            self._controller.renew()
            return
        before = self._controller.limit
        seen = self._seen()
        limit = self._controller.observe(seen)
        if limit == before:
            return
        self._places.resize(limit)
        self._record("concurrency", record_of(self._controller, seen))
        if max(limit, self._said) >= _WORTH_SAYING * min(limit, self._said):
            self._said = limit
            self._say(f"{limit} trajectories at once from now on: {self._controller.reason}")

    def _seen(self) -> Look:
        loads = [engine.stats() for engine in self._engines if engine.state is EngineState.up]
        placement = self._gateway.placement
        return Look(
            under_way=self._places.taken,
            ended_total=self._ended_before + self._places.given_back,
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads) + placement.held,
            preemptions_total=sum(load.preemptions_total for load in loads),
            returns_total=placement.returns.returns_total,
            reusable_total=placement.returns.reusable_total,
            reused_total=placement.returns.reused_total,
        )
