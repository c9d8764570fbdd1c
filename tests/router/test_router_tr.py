"""The program-aware router's promises, one scenario each; test_router_tr_stateful.py has the interleavings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router import pausing
from swe_rl.router.core import (
    EngineAdded,
    EngineDrained,
    EngineLoad,
    EngineLost,
    GroupLeft,
    Place,
    ProgramReleased,
    RequestArrived,
    RequestFinished,
    StepTail,
    SyncBegan,
    SyncEnded,
    Tick,
)
from swe_rl.router.tr import TrPolicy
from swe_rl.router.tr_settings import TrSettings

BASE = TrSettings(capacity_tokens=1000, min_stay_s=0.0, lease_s=1000.0, sibling_share=0.0)


class Driver:
    """One policy with its state and a clock; answers are 0 tokens unless said, so that sums stay readable."""

    def __init__(self, settings=BASE, engines=("e0",)):
        self.policy = TrPolicy(settings)
        self.state = self.policy.initial(engines)
        self.state.answers.mean_tokens = self.state.growth.mean_tokens = 0.0
        self.state.answers.smoothing = self.state.growth.smoothing = 0.0
        self.now, self.turn = 0.0, 0

    def feed(self, event, after_s=1.0):
        self.now += after_s
        return self.policy.step(self.state, event, self.now)

    def ask(self, program, tokens, group=None, after_s=1.0):
        self.turn += 1
        return self.feed(RequestArrived(program, f"{program}.{self.turn}", tokens, group), after_s)

    def end(self, program, context=None, after_s=1.0):
        """Of its oldest unfinished request."""
        request = next(one for one in self.state.requests.values() if one.program.program_id == program)
        return self.feed(RequestFinished(program, request.request_id, context or request.prompt_tokens), after_s)

    def turn_of(self, program, tokens, **options):
        actions = self.ask(program, tokens, **options)
        assert actions, f"{program} is held"
        self.end(program)
        return actions[0].engine

    def tick(self, after_s=5.0, **loads):
        return self.feed(Tick(tuple(EngineLoad(name, 0, 0, 0, tokens) for name, tokens in loads.items())), after_s)

    def status(self, program):
        return self.state.programs[program].status


def names(actions):
    return [action.request_id.split(".")[0] for action in actions]


def test_programs_are_let_in_up_to_one_share_and_paused_above_another():
    driver = Driver()
    driver.ask("busy", 100)
    for program, tokens in (("a", 200), ("b", 200), ("c", 200), ("d", 150)):
        driver.turn_of(program, tokens)
    assert driver.ask("e", 100) == []  # 850 + 100 is over 0.85
    assert names(driver.ask("a", 290)) == ["a"]  # 940 is not over 0.95
    driver.end("a")
    assert names(driver.ask("b", 220)) == ["b"]  # 960 is: one idle program gives way, the smallest that is enough
    assert [driver.status(program) for program in "abcde"] == ["acting", "reasoning", "acting", "paused", "new"]
    assert driver.ask("d", 150) == []
    assert names(driver.feed(ProgramReleased("a"))) == ["d", "e"]  # at once, without a tick; the cached one first


def test_admission_order_is_overdue_cached_then_fewest_turns():
    driver = Driver(replace(BASE, max_hold_s=100.0))
    driver.turn_of("cached", 300)
    for _ in range(2):
        driver.turn_of("ahead", 10)
    driver.ask("busy", 500)
    for program in ("cached", "ahead"):
        pausing.pause_program(driver.state, driver.state.programs[program], driver.state.books["e0"], "test")
    driver.state.books["e0"].cache.drop("ahead")
    for program, tokens in (("ahead", 400), ("first", 400), ("second", 380)):
        assert driver.ask(program, tokens) == []
    assert names(driver.ask("cached", 320)) == ["cached"]  # before all that came earlier
    assert names(driver.end("cached")) == []
    assert names(driver.end("busy")) == ["first"]  # nothing ran: one idle program gave way
    assert driver.status("ahead") == "held" and driver.status("second") == "new"
    driver.state.books["e0"].account.running_tokens += 600  # no room, whatever ends
    (late, later) = driver.tick(after_s=100.0)
    assert (late.request_id.split(".")[0], late.reason) == ("ahead", "overdue")
    assert names([later]) == ["second"]


def test_a_program_without_its_prefix_lets_those_go_first_that_are_behind():
    driver = Driver()
    driver.turn_of("a", 300)
    driver.ask("busy", 500)
    assert driver.ask("b", 200) == []
    driver.state.books["e0"].cache.drop("a")
    assert names(driver.ask("a", 310)) == ["b"]  # its place is free now
    assert driver.status("a") == "held" and list(driver.state.cold) == ["a"]
    assert "unbind: prefix is gone" in driver.state.snapshot()["decision_counts"]


def test_what_first_prompts_find_cached_is_counted_once_an_engine():
    driver = Driver()
    for number in range(9):
        driver.ask(f"p{number}", 80)
        request = next(iter(driver.state.requests.values()))
        cached = (0, 0, 32, 32, 32, 32, 80, 32, 32)[number]
        driver.feed(RequestFinished(f"p{number}", request.request_id, 80, cached))
        driver.feed(ProgramReleased(f"p{number}"))
    account = driver.state.books["e0"].account
    assert account.common_tokens == 32 and account.empty
    driver.ask("x", 100)
    driver.ask("y", 100)
    assert account.pinned_tokens == 32 + 2 * 68
    driver.feed(EngineAdded("e1", 1000))
    assert driver.state.books["e1"].account.common_tokens == 32


def test_siblings_do_not_teach_what_all_programs_share():
    driver = Driver()
    for number in range(9):
        driver.ask(f"p{number}", 80, group="g")
        request = next(iter(driver.state.requests.values()))
        driver.feed(RequestFinished(f"p{number}", request.request_id, 80, 16 if number == 0 else 80))
    assert driver.state.books["e0"].account.common_tokens == 16


def test_a_paused_program_goes_back_to_its_prefix_and_elsewhere_when_that_is_gone():
    driver = Driver(engines=("e0", "e1"))
    driver.ask("x", 400)  # e0
    driver.ask("y", 800)  # e1
    driver.ask("keeps e0 busy", 100)
    driver.end("x")
    pausing.pause_program(driver.state, driver.state.programs["x"], driver.state.books["e0"], "test")
    driver.ask("z", 500)
    assert driver.state.programs["z"].engine == "e0"
    assert driver.ask("x", 410) == []
    assert list(driver.state.books["e0"].resident) == ["x"]
    driver.end("z")
    assert [action.engine for action in driver.feed(ProgramReleased("z"))] == ["e0"]
    driver.end("x")
    pausing.pause_program(driver.state, driver.state.programs["x"], driver.state.books["e0"], "test")
    driver.ask("w", 700)  # pushes x out of e0's cache
    assert driver.ask("x", 420) == [] and list(driver.state.cold) == ["x"]
    (placed,) = driver.end("y")
    assert (placed.engine, placed.reason) == ("e1", "cold")


def test_a_program_leaves_its_prefix_for_an_engine_that_runs_nothing():
    driver = Driver(engines=("e0", "e1"))
    driver.ask("x", 400)
    driver.ask("y", 900)
    driver.ask("keeps e0 busy", 100)
    driver.end("x")
    pausing.pause_program(driver.state, driver.state.programs["x"], driver.state.books["e0"], "test")
    driver.ask("z", 450)
    assert driver.ask("x", 410) == []
    (moved,) = driver.end("y")
    assert (moved.engine, moved.reason) == ("e1", "moved")


def test_siblings_go_together_and_their_prefix_counts_once():
    driver = Driver(engines=("e0", "e1"))
    assert [driver.turn_of(f"g{number}", 400, group="g") for number in range(3)] == ["e0"] * 3
    book = driver.state.books["e0"]
    assert (book.account.load_tokens(driver.now), book.account.idle_prefix_tokens) == (400, 400)
    assert driver.turn_of("h0", 300, group="h") == "e1"
    for program in ("g0", "g1", "g2"):
        driver.feed(ProgramReleased(program))
    assert book.account.empty and "g" not in driver.state.groups


def test_an_engine_that_runs_nothing_takes_a_waiting_program_at_once():
    driver = Driver()
    driver.turn_of("a", 800)
    (placed,) = driver.ask("b", 600)  # nothing runs: the one whose tool runs gives way
    assert placed.engine == "e0" and driver.status("a") == "paused"
    assert driver.ask("c", 300) == []
    assert names(driver.end("b")) == ["c"]


def test_a_program_larger_than_an_engine_still_runs():
    driver = Driver()
    assert driver.turn_of("a", 5000) == "e0"
    assert driver.turn_of("a", 6000) == "e0"


def test_idle_programs_past_their_lease_make_room_for_one_that_waits():
    driver = Driver(replace(BASE, lease_s=10.0))
    driver.turn_of("idle", 400)
    driver.ask("busy", 400)
    assert driver.ask("new", 300) == []
    assert driver.tick(after_s=5.0) == []
    assert names(driver.tick(after_s=5.0)) == ["new"]
    assert driver.status("idle") == "paused"


def test_one_program_may_ask_for_several_answers_at_once():
    driver = Driver()
    driver.ask("a", 100)
    driver.ask("a", 300)
    driver.ask("a", 50)
    account = driver.state.books["e0"].account
    assert (account.running, account.running_tokens) == (3, 450)
    for _ in range(3):
        driver.end("a")
    assert (account.running, account.acting, account.acting_tokens) == (0, 1, 300)  # the largest is what it holds
    driver.ask("a", 20)
    driver.end("a")
    assert account.acting_tokens == 20


def test_a_weight_of_zero_lets_everybody_in_whose_tools_run():
    driver = Driver(replace(BASE, acting_token_weight=0.0))
    for number in range(10):
        driver.turn_of(f"p{number}", 800)
    assert all(driver.status(f"p{number}") == "acting" for number in range(10))
    assert driver.ask("p0", 810) != [] and driver.ask("p1", 810) == []


def test_a_dead_engines_programs_go_elsewhere_and_late_answers_count_nothing():
    driver = Driver(engines=("e0", "e1"))
    driver.ask("a", 500)
    driver.ask("b", 600)
    driver.turn_of("c", 300)
    driver.ask("d", 400)
    assert driver.status("d") == "new"
    driver.feed(EngineLost("e0"))
    assert driver.state.books["e0"].account.empty
    driver.end("a", 550)
    assert driver.state.books["e0"].account.empty and driver.status("a") == "paused"
    assert driver.ask("a", 560) == []
    assert {action.engine for action in driver.feed(EngineAdded("e0", 1000))} == {"e0"}
    driver.feed(EngineDrained("e1"))
    driver.end("b")
    assert driver.state.books["e1"].account.empty
    assert driver.feed(EngineLost("nobody")) == []


def test_nothing_is_placed_during_a_sync_and_prefixes_are_gone_after_it():
    driver = Driver(replace(BASE, max_hold_s=50.0, stagger_s=4.0))
    for program in "abc":
        driver.turn_of(program, 250)
    driver.feed(SyncBegan())
    driver.feed(SyncBegan())
    assert [driver.ask(program, 260) for program in "abc"] == [[], [], []]
    assert driver.feed(SyncEnded()) == []
    assert driver.tick(after_s=200.0) == []  # holds do not run out meanwhile
    first = driver.feed(SyncEnded())
    assert names(first) == ["a"]  # the others' prefills wait for it, up to stagger_s
    assert names(driver.tick(after_s=1.0)) == [] and names(driver.tick(after_s=1.5)) == ["b"]
    assert names(driver.tick(after_s=2.0)) == ["c"]
    assert not any(action.reason == "overdue" for action in first)


def test_a_sync_that_keeps_the_caches_keeps_the_prefixes():
    driver = Driver()
    for program in "abc":
        driver.turn_of(program, 250)
    driver.feed(SyncBegan())
    for program in "abc":
        driver.ask(program, 260)
    assert names(driver.feed(SyncEnded(kv_kept=True))) == ["a", "b", "c"]


def test_at_the_tail_of_a_step_whatever_fits_the_engines_runs():
    driver = Driver(engines=("e0", "e1"))
    for program in "abcd":
        assert driver.ask(program, 400) != []
    driver.end("c")
    assert driver.ask("e", 380) == []
    assert names(driver.feed(StepTail())) == ["e"]
    assert driver.ask("c", 410) != []
    assert not driver.state.log.counts["pause", "growth"]
    driver.ask("f", 200)  # more than all engines hold: as before
    assert driver.status("f") == "new"


def test_an_engine_that_does_not_say_how_much_it_holds_gets_the_default_and_changes_count_at_once():
    driver = Driver()
    driver.tick(e0=0)
    driver.ask("a", 800)
    assert driver.ask("b", 800) == []
    assert names(driver.tick(e0=4000)) == ["b"]
    assert names(driver.tick(e0=0)) == []
    driver.ask("c", 1000)
    driver.tick(e0=1000)
    assert driver.ask("d", 10) == []


def test_a_shortage_takes_capacity_away():
    driver = Driver()
    driver.ask("a", 700)
    load = EngineLoad("e0", 1, 2, 950, 1000)
    driver.feed(Tick((load,)))
    assert driver.ask("b", 120) == []
    assert driver.state.snapshot()["engines"][0]["bias_tokens"] == 50


def test_engines_serve_no_more_requests_than_they_run_at_once():
    driver = Driver(replace(BASE, max_num_seqs=2))
    for program in "abc":
        driver.ask(program, 10)
    assert driver.status("c") == "new"
    assert names(driver.end("a")) == ["c"]


def test_an_id_that_is_in_use_is_ignored_and_unknown_ids_are_nothing():
    driver = Driver()
    first = driver.feed(RequestArrived("a", "r", 100))
    assert first == [Place("r", "e0")]
    assert driver.feed(RequestArrived("a", "r", 100)) == []
    assert driver.feed(RequestFinished("b", "unknown", 3)) == [] and driver.feed(ProgramReleased("b")) == []
    assert driver.state.books["e0"].account.running_tokens == 100


def test_a_released_program_is_forgotten_with_its_last_request():
    driver = Driver()
    driver.ask("a", 900)
    driver.ask("b", 900)
    driver.feed(ProgramReleased("a"))
    driver.feed(ProgramReleased("b"))
    assert len(driver.state.programs) == 2  # one runs, one is held: both will still be finished
    assert names(driver.end("a")) == ["b"]
    driver.end("b")
    assert not driver.state.programs and driver.state.books["e0"].account.empty


def test_silent_programs_are_forgotten():
    driver = Driver(replace(BASE, idle_ttl_s=300.0))
    driver.turn_of("a", 100)
    driver.tick(after_s=200.0)
    assert "a" in driver.state.programs
    driver.tick(after_s=200.0)
    assert not driver.state.programs and driver.state.books["e0"].account.empty


def test_a_snapshot_explains_the_latest_decisions():
    driver = Driver()
    driver.turn_of("a", 800)
    driver.ask("b", 300)
    driver.ask("c", 900)
    snapshot = driver.state.snapshot()
    assert snapshot["program_counts"] == {"paused": 1, "reasoning": 1, "new": 1}
    assert snapshot["decision_counts"]["pause: lease"] == 1
    (engine,) = snapshot["engines"]
    assert (engine["running_tokens"], engine["capacity_tokens"], engine["state"]) == (300, 1000, "open")
    last = snapshot["decisions"][-1]
    assert (last["event"], last["program_id"], last["decision"]) == ("RequestArrived", "c", "hold")
    pause = next(one for one in snapshot["decisions"] if one["decision"] == "pause")
    assert (pause["program_id"], pause["engine"], pause["tokens"], pause["load_tokens"]) == ("a", "e0", 800, 800)
    assert [one["status"] for one in snapshot["programs"]] == ["paused", "reasoning", "new"]


_idles = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 20), st.booleans()), min_size=1, max_size=20)


@given(_idles, st.integers(1, 2000), st.sampled_from([0.1, 0.5, 1.0]))
def test_a_plan_is_minimal(idles, excess, weight):
    driver = Driver(replace(BASE, acting_token_weight=weight, lease_s=10.0, capacity_tokens=10**6))
    for number, (tokens, idle, gone) in enumerate(idles):
        driver.turn_of(f"p{number}", tokens, after_s=float(idle))
        if gone:
            driver.state.books["e0"].cache.drop(f"p{number}")
    book = driver.state.books["e0"]
    before = book.account.load_tokens(driver.now)
    victims = pausing.plan_pauses(driver.state, book, excess)
    worth = [weight * program.context_tokens for program in victims]
    if victims:
        assert sum(worth) >= excess and all(sum(worth) - one < excess for one in worth)
        assert pausing.relieve_engine(driver.state, book, excess, "test")
        assert before - book.account.load_tokens(driver.now) == pytest.approx(sum(worth))
    else:
        assert sum(weight * tokens for tokens, _, _ in idles) < excess


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [TrSettings(), TrSettings(acting_token_weight=0.1, acting_half_life_s=5.0)])
def test_a_loop_under_pressure_ends_with_everything_at_zero(tr_world, settings, seed):
    settings = replace(settings, max_hold_s=60.0, tick_s=1.0)
    loop = tr_world.Loop(TrPolicy(settings), seed=seed).run()
    tr_world.audit(loop.state)
    assert loop.left == 0 and not loop.state.programs and not loop.state.demand_tokens
    assert 0 < max(loop.held_s) <= settings.max_hold_s + loop.tick_s
    counts = loop.state.log.counts
    assert counts["pause", "growth"] + counts["unbind", "prefix is gone"] > 0
    again = tr_world.Loop(TrPolicy(settings), seed=seed).run()
    assert again.actions == loop.actions and again.state.log.latest() == loop.state.log.latest()


def test_nobody_is_paused_right_after_having_been_let_in(tr_world, monkeypatch):
    loop = tr_world.Loop(TrPolicy(TrSettings(min_stay_s=3.0, tick_s=1.0)), programs=120)
    stays = []
    original = pausing.pause_program

    def pause(state, program, book, reason):
        stays.append(state.now_s - program.admitted_s)
        original(state, program, book, reason)

    monkeypatch.setattr(pausing, "pause_program", pause)
    loop.run()
    assert len(stays) > 20 and min(stays) >= 3.0


def test_where_groups_flow_the_one_that_is_nearest_to_its_end_goes_first():
    driver = Driver()
    driver.ask("busy", 900)
    for group, left in (("far", 3), ("near", 1), ("nearer", 2)):
        driver.feed(GroupLeft(group, left))
        assert driver.ask(f"of_{group}", 800, group) == []
    assert driver.ask("unspoken", 800) == []  # an evaluation's: of no group that is trained
    driver.feed(GroupLeft("nearer", 1))  # while its program waits: as near as the other one, which came before
    order = ["busy"]
    for _ in range(4):
        driver.end(order[-1])
        driver.feed(ProgramReleased(order[-1]))
        order += [program for program, known in driver.state.programs.items() if known.running]
    assert order[1:] == ["unspoken", "of_near", "of_nearer", "of_far"]


def test_a_group_that_is_over_is_forgotten():
    driver = Driver()
    for left in (2, 1, 0):
        driver.feed(GroupLeft("g", left))
        assert driver.state.left_of_group == ({"g": left} if left else {})


def test_a_program_of_a_far_group_is_not_overtaken_for_ever():
    """As turns do, siblings count less the longer a program waits."""
    settings = replace(BASE, ageing_turns_per_s=0.5, max_hold_s=10_000.0)
    driver = Driver(settings)
    driver.ask("busy", 900)
    driver.feed(GroupLeft("far", 4))
    driver.ask("of_far", 800, "far")
    for number in range(40):
        driver.feed(GroupLeft(f"g{number}", 1))
        driver.ask(f"p{number}", 800, f"g{number}")
        runs = next(name for name, known in driver.state.programs.items() if known.running)
        driver.end(runs)
        driver.feed(ProgramReleased(runs))
        if driver.state.programs["of_far"].running:
            break
    assert 0 < number < 30


@pytest.mark.parametrize(("shrinks", "usable_share"), [(True, 1.0), (False, 0.5)])
def test_a_compacted_conversation_is_no_miss(shrinks, usable_share):
    """It shares its first message alone with what the engine keeps. A longer one that finds as little was evicted."""
    driver = Driver()
    context = 400
    for _ in range(40):
        prompt = 120 if shrinks else context
        driver.ask("a", prompt)
        request = next(iter(driver.state.requests.values()))
        driver.feed(RequestFinished("a", request.request_id, 400, 20))
    assert driver.state.books["e0"].cache.usable_share == usable_share
