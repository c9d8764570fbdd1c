"""Both sides' patience: what starts a server again, what gives it up, and what ends it; with a clock of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.config.choices import RuntimeKind
from swe_rl.config.schema import RuntimeConfig
from swe_rl.hardware.slurm.jobs import JobState, Queue
from swe_rl.run.runtime_keeper import Act, ServerWatch, Tenancy

RUNTIME = RuntimeConfig(kind=RuntimeKind.job, ready_timeout_s=100.0, lease_s=40.0, max_restarts=2)
WAITS = JobState(Queue.WAITS, "PENDING", "Resources")
RUNS = JobState(Queue.RUNS, "RUNNING")
GONE = JobState(Queue.GONE, "FAILED", "NonZeroExitCode")
UNKNOWN = JobState(Queue.UNKNOWN)


class Server:
    def __init__(self):
        self.watch = ServerWatch(0, RUNTIME)

    def look(self, now_s, *, alive=False, job=None, can_submit=True):
        decision = self.watch.look(now_s, alive=alive, job=job, can_submit=can_submit)
        if decision.act is Act.RESTART:
            self.watch.restarted()
        return decision.act


def test_the_queue_costs_no_patience():
    server = Server()
    assert {server.look(now_s, job=WAITS) for now_s in range(0, 100_000, 500)} == {Act.WAIT}
    assert server.look(100_000, job=RUNS) is Act.WAIT  # only now does the time begin
    assert server.look(100_090, job=RUNS) is Act.WAIT
    assert server.look(100_101, job=RUNS) is Act.RESTART
    words = server.watch.look(0.0, alive=False, job=WAITS, can_submit=True).words
    assert words == "sandbox server 0 is in the queue, job PENDING (Resources)"


def test_a_job_that_ended_is_submitted_again_at_once_and_not_for_ever():
    server = Server()
    assert server.look(0, alive=True, job=RUNS) is Act.USE
    assert server.look(1, job=GONE) is Act.RESTART
    assert server.look(2, job=WAITS) is Act.WAIT
    assert server.look(3, job=GONE) is Act.RESTART
    assert server.look(4, job=GONE) is Act.LOST
    decision = server.watch.look(5, alive=False, job=GONE, can_submit=True)
    assert "started 2 times anew (runtime.max_restarts)" in decision.words


def test_a_time_of_steady_service_makes_up_for_restarts():
    server = Server()
    for now_s in (0, 1000, 2000, 3000):
        assert server.look(now_s, job=GONE) is Act.RESTART
        for more_s in (1, 50, 101):
            assert server.look(now_s + more_s, alive=True, job=RUNS) is Act.USE
    assert server.look(4000, job=GONE) is Act.RESTART
    server.look(4001, alive=True, job=RUNS)
    assert server.look(4002, job=GONE) is Act.RESTART
    assert server.look(4003, job=GONE) is Act.LOST


def test_a_server_that_served_and_hangs_is_replaced_after_a_lease():
    server = Server()
    server.look(0, alive=True, job=RUNS)
    assert server.look(1, job=RUNS) is Act.WAIT
    assert server.look(40, job=RUNS) is Act.WAIT
    assert server.look(42, job=RUNS) is Act.RESTART
    assert server.look(43, job=RUNS) is Act.WAIT  # the new one may take longer: it has to start
    assert server.look(140, job=RUNS) is Act.WAIT


@pytest.mark.parametrize("job", [None, UNKNOWN])
def test_without_a_queue_somebody_may_start_it(job):
    server = Server()
    assert server.look(0, job=job, can_submit=False) is Act.WAIT
    assert server.look(99, job=job, can_submit=False) is Act.WAIT
    assert server.look(100, alive=True, job=job, can_submit=False) is Act.USE
    assert server.look(150, job=job, can_submit=False) is Act.WAIT  # anew
    assert server.look(249, job=job, can_submit=False) is Act.WAIT
    assert server.look(251, job=job, can_submit=False) is Act.LOST


@given(st.lists(st.sampled_from([None, RUNS, GONE, UNKNOWN]), min_size=60, max_size=60), st.booleans())
def test_whatever_happens_outside_the_queue_it_ends(states, can_submit):
    """A server that never comes: bounded by one patience for each start."""
    server = Server()
    acts = [server.look(10.0 * number, job=job, can_submit=can_submit) for number, job in enumerate(states)]
    assert acts.count(Act.RESTART) <= RUNTIME.max_restarts
    assert Act.LOST in acts


# ---- the server's side


def test_a_server_ends_when_its_run_is_silent_for_a_lease():
    tenancy = Tenancy(RUNTIME)
    assert tenancy.look(0, [0.0], None) is None
    assert tenancy.look(40, [40.0], None) is None
    assert tenancy.look(41, [41.0], None) == "the run gave no sign of life for 41 s"


def test_either_way_of_hearing_counts():
    assert Tenancy(RUNTIME).look(100, [100.0, 3.0], None) is None


def test_a_server_ends_at_once_when_its_run_says_so():
    tenancy = Tenancy(RUNTIME)
    tenancy.look(0, [0.0], RUNS)
    assert tenancy.look(1, [], None) == "the run is over"
    assert tenancy.look(2, [], GONE) == "the run is over"


def test_a_run_in_the_queue_keeps_its_server_also_after_a_requeue():
    tenancy = Tenancy(RUNTIME)
    assert {tenancy.look(now_s, [], WAITS) for now_s in range(0, 100_000, 500)} == {None}
    assert tenancy.look(100_000, [0.0], RUNS) is None
    assert tenancy.look(100_001, [], WAITS) is None
    assert tenancy.look(200_000, [], RUNS) is None  # it is starting
    assert tenancy.look(200_099, [], RUNS) is None
    assert "gave no sign of life" in (tenancy.look(200_101, [], RUNS) or "")


def test_a_run_that_left_the_queue_without_coming():
    tenancy = Tenancy(RUNTIME)
    assert tenancy.look(0, [], GONE) is None  # the note may be older than the queue's memory of it
    assert tenancy.look(41, [], GONE) == "the run's job has ended"


def test_nobody_comes():
    tenancy = Tenancy(RUNTIME)
    assert tenancy.look(0, [], None) is None and tenancy.look(100, [], None) is None
    assert tenancy.look(101, [], None) == "no run came within 101 s"


@given(st.lists(st.sampled_from([None, RUNS, GONE, UNKNOWN]), min_size=30, max_size=30), st.booleans())
def test_a_server_never_outlives_its_run_by_much(states, came):
    tenancy, ends = Tenancy(RUNTIME), []
    if came:
        tenancy.look(0.0, [0.0], RUNS)
    for number, job in enumerate(states):
        now_s = 41.0 + 10.0 * number
        ends.append(tenancy.look(now_s, [now_s] if came else [], job) is not None)
    assert any(ends[:12])  # ready_timeout_s at most, from when its lease ran out
