"""Groups that flow in real time beside the simulator: scripted engines whose tokens take a known time each.

    python -m bench.stream_measured
    python -m bench.stream_measured --train-s 6 --places 12

The real pace (swe_rl/rollout/flow.py) begins, takes and trains groups of drawn trajectories; engines, tools and trainer
take their time by sleeping, so that the machine's speed does not matter much. The simulator gets the same trajectories.
While weights are on their way no engine samples; requests go on where they were.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from swe_rl.agent.protocol import AgentResult
from swe_rl.config.schema import RolloutConfig
from swe_rl.engine.protocol import SamplingParams
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.rollout.collect import Collected, Place
from swe_rl.rollout.flow import Flow, Pace
from swe_rl.rollout.sampler import Begun, GroupOrder, PromptSampler
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.router.core import Router
from swe_rl.router.default import DefaultPolicy
from swe_rl.router.simulation.engine_model import EngineLimits
from swe_rl.router.simulation.fleet import Fleet
from swe_rl.router.simulation.pace import FlowPace, Group, TrainedStep, TrainerSpeed
from swe_rl.router.simulation.training import outcome_of_steps
from swe_rl.router.simulation.workload import MINI_SWE, Lognormal, Program, Uniform, draw

LOAD = replace(
    MINI_SWE,
    turns=Uniform(2, 6),
    issue_tokens=Lognormal(20.0, 0.3),
    observation_tokens=Lognormal(10.0, 0.5),
    out_tokens=Lognormal(8.0, 0.7, 60.0),
    tool_s=Lognormal(0.4, 1.0, 6.0),
    boot_s=Uniform(0.0, 0.2),
    grade_s=Lognormal(0.5, 0.6, 3.0),
    system_tokens=8,
)
SYNC_S = 0.2


class Agents:
    """Drawn programs against scripted engines, each trajectory on one of them."""

    def __init__(self, groups: list[Group], token_s: float, engines: int, places: int) -> None:
        self.engines = [ScriptedEngine(lambda prompt: [1] * prompt[0], token_delay_s=token_s) for _ in range(engines)]
        self.ages: dict[int, Counter[int]] = {}
        self._groups, self._gradings = groups, asyncio.Semaphore(places)

    def known(self, begun: Begun) -> None:
        return None

    async def attempt(
        self, begun: Begun, sample: int, retried: list[Trajectory], place: Place
    ) -> tuple[Trajectory, AgentResult | None]:
        program = self._groups[begun.number][sample]
        engine = min(self.engines, key=lambda each: each.stats().running)
        ages = self.ages.setdefault(begun.number, Counter())
        await asyncio.sleep(program.boot_s)
        for number, turn in enumerate(program.turns):
            asked = engine.generate(
                [turn.out_tokens], SamplingParams(1000), request_id=f"{program.program_id}.{number}"
            )
            ages.update((await asked).weight_versions)
            await asyncio.sleep(turn.tool_s)
        place.give_back()
        async with self._gradings:
            await asyncio.sleep(program.grade_s)
        group = f"train.1.g{begun.number}"
        name, reward = f"{group}.{sample}.0", float(sample % 2)
        return Trajectory(
            name, f"g{begun.number}", group, "train", 1, sample, 0, Status.resolved, reward, True, True
        ), None

    async def keep(self, begun: Begun, collected: Collected) -> None:
        pass


async def measured(groups: list[Group], options: argparse.Namespace, trainer: TrainerSpeed) -> list[TrainedStep]:
    agents = Agents(groups, options.token_s, options.engines, options.places)
    pace = Pace(n=options.n, concurrency=options.places, prompts=options.prompts, ahead=options.ahead)
    flow = Flow(GroupOrder(PromptSampler(len(groups), 0), options.prompts), agents, pace, options.steps)
    clock, trained = asyncio.get_running_loop(), list[TrainedStep]()
    began_s = clock.time()
    async with flow.flowing():
        for version in range(options.steps):
            asked_s = clock.time()
            taken = await flow.take()
            waited_s = clock.time() - asked_s
            programs = [program for number in taken.numbers for program in groups[number]]
            await asyncio.sleep(trainer.train_s(programs))
            ages = sum((agents.ages[number] for number in taken.numbers), Counter[int]())
            stale = Counter({version - sampler: tokens for sampler, tokens in ages.items()})
            tokens = sum(program.total_tokens for program in programs)
            now_s = clock.time() - began_s
            trained.append(TrainedStep(now_s, 0.0, waited_s, tokens, stale, tuple(taken.numbers)))
            for engine in agents.engines:
                await engine.pause()
            await asyncio.sleep(trainer.sync_s)
            for engine in agents.engines:
                await engine.update_weights({}, version + 1)
                await engine.resume()
            flow.trained()
            flow.sent()
    return trained


def simulated(groups: list[Group], options: argparse.Namespace, trainer: TrainerSpeed) -> list[TrainedStep]:
    """A step of these engines takes a token's time, however many requests it is for."""
    names = [f"engine{index}" for index in range(options.engines)]
    speed = EngineSpeed(options.token_s, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    fleet = Fleet(Router(DefaultPolicy(), names), speed, EngineLimits(10**6, 10**4, 10**6))
    pace = FlowPace(
        fleet,
        groups,
        trainer,
        places=options.places,
        prompts=options.prompts,
        ahead=options.ahead,
        steps=options.steps,
    )
    fleet.run(lambda: len(pace.trained) == options.steps)
    return pace.trained


def drawn(options: argparse.Namespace) -> list[Group]:
    rollout = RolloutConfig(
        prompts_per_step=options.prompts, n=options.n, max_turns=20, max_prompt_tokens=400, max_trajectory_tokens=4000
    )
    load = draw(LOAD, rollout, options.seed, options.steps)
    programs: list[Program] = [program for step in load.steps for program in step]
    return [tuple(programs[at : at + options.n]) for at in range(0, len(programs), options.n)]


def compared(
    options: argparse.Namespace, run: Callable[[Coroutine[Any, Any, list[TrainedStep]]], list[TrainedStep]]
) -> dict[str, tuple[float, float]]:
    """Measured and simulated, over the steps after the first."""
    groups = drawn(options)
    tokens = sum(program.total_tokens for group in groups for program in group) / options.steps
    trainer = TrainerSpeed(options.train_s / tokens, SYNC_S)
    pairs = [
        outcome_of_steps("stream", trained[1:], options.engines)
        for trained in (run(measured(groups, options, trainer)), simulated(groups, options, trainer))
    ]
    keys = ("tokens_per_h", "step_s", "trainer_idle_share", "staleness_mean")
    return {key: (getattr(pairs[0], key), getattr(pairs[1], key)) for key in keys}


def main() -> None:
    options = options_of(None)
    for key, (real, virtual) in compared(options, asyncio.run).items():
        print(f"{key:20} measured {real:12.4g}   simulated {virtual:12.4g}   {virtual / real - 1 if real else 0:+.1%}")


def options_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--train-s", type=float, default=4.0, help="of a mean step")
    parser.add_argument("--token-s", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
