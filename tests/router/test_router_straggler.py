"""One of two engines is ten times slower: new programs begin elsewhere, and nobody is held beyond the bound."""

import heapq
from collections import Counter

import pytest

from swe_rl.config.choices import ROUTERS
from swe_rl.config.schema import RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.router.core import EngineLoad, ProgramReleased, RequestArrived, RequestFinished, Tick
from swe_rl.router.make import make_router

ENGINES = [ScriptedEngine(lambda prompt: [1], name=name) for name in ("slow", "fast")]
ANSWER_S = {"slow": 10.0, "fast": 1.0}
PROGRAMS, TURNS, TOKENS, CAPACITY_TOKENS = 60, 3, 100, 1000
MAX_HOLD_S, TICK_S = 20.0, 1.0


class Loop:
    """Programs that come one a half second; an engine takes its own time for each answer. On a virtual clock."""

    def __init__(self, name):
        config = RouterConfig(name=name, max_programs_per_engine=4, max_hold_s=MAX_HOLD_S, tick_s=TICK_S)
        self.router = make_router(config, ENGINES, capacity_tokens=CAPACITY_TOKENS, max_num_seqs=8)
        self.now_s, self.number, self.queue = 0.0, 0, []
        self.asked_s, self.held_s, self.ended = {}, [], 0
        self.begun = Counter()
        for program in range(PROGRAMS):
            self.later(program * 0.5, self.ask, f"p{program}", 0)
        self.later(TICK_S, self.tick)

    def later(self, after_s, function, *arguments):
        self.number += 1
        heapq.heappush(self.queue, (self.now_s + after_s, self.number, function, arguments))

    def feed(self, event):
        for place in self.router.handle(event, self.now_s):
            self.held_s.append(self.now_s - self.asked_s.pop(place.request_id))
            program, turn = place.request_id.split(".")
            self.begun[place.engine] += turn == "0"
            self.later(ANSWER_S[place.engine], self.answer, program, int(turn))

    def ask(self, program, turn):
        self.asked_s[f"{program}.{turn}"] = self.now_s
        self.feed(RequestArrived(program, f"{program}.{turn}", TOKENS))

    def answer(self, program, turn):
        self.feed(RequestFinished(program, f"{program}.{turn}", TOKENS))
        if turn + 1 < TURNS:
            self.later(0.5, self.ask, program, turn + 1)
        else:
            self.ended += 1
            self.feed(ProgramReleased(program))

    def tick(self):
        self.feed(Tick(tuple(EngineLoad(engine.name, 0, 0, 0, CAPACITY_TOKENS) for engine in ENGINES)))
        self.later(TICK_S, self.tick)

    def run(self):
        while self.ended < PROGRAMS and self.now_s < 10_000:
            self.now_s, _, function, arguments = heapq.heappop(self.queue)
            function(*arguments)
        return self


@pytest.mark.parametrize("name", ROUTERS)
def test_a_slow_engine_gets_few_programs_and_starves_none(name):
    loop = Loop(name).run()
    assert loop.ended == PROGRAMS and not loop.asked_s
    assert loop.begun["slow"] < loop.begun["fast"] / 2
    assert max(loop.held_s) <= MAX_HOLD_S + TICK_S
