"""A group over links that are neither processes nor actors: what it asks of them, and what it leaves behind."""

import time
from types import SimpleNamespace

import pytest

from swe_rl.algo.row import Row
from swe_rl.config.schema import TrainerConfig
from swe_rl.engine.transfer.sent_weights import Staging
from swe_rl.trainer.ranks import group as group_module
from swe_rl.trainer.ranks import rank
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.link import RankEnd
from swe_rl.trainer.ranks.rows_file import RowsFile
from swe_rl.trainer.trainer import RankLost, TrainerError


class Link:
    """Answers every request with itself; `silent` ones are gone."""

    def __init__(self, rank, is_here=True):
        self.rank, self.is_here, self.pid = rank, is_here, 100 + rank
        self.read = []
        self.asked, self.answers, self.killed, self.patience_s, self.gone = [], [("ready", None)], 0, None, False

    def send(self, request):
        self.asked.append(request)
        self.read += [value.rows() for value in request[1] if isinstance(value, RowsFile)]
        self.answers.append(("done", request))

    def recv(self):
        if self.gone:
            raise EOFError
        return self.answers.pop(0)

    def is_alive(self):
        return not self.gone

    def reported(self, told):
        return RankEnd(self.rank, "reported", 0.0)

    def ended(self, when):
        return RankEnd(self.rank, f"it left {when}", float("-inf")) if self.gone else None

    def kill(self):
        self.killed += 1

    def end(self, patience_s):
        self.patience_s = patience_s


class Place:
    def __init__(self, links, problem=None):
        self.links, self.problem, self.closed = links, problem, 0

    def launch(self, setup):
        yield from self.links
        if self.problem is not None:
            raise self.problem

    def wait(self, links, timeout_s):
        return [link for link in links if link.answers or link.gone]

    def close(self):
        self.closed += 1


def group_of(*links, problem=None):
    place = Place(list(links), problem)
    setup = SimpleNamespace(world=len(links), trainer=TrainerConfig(collective_timeout_s=5.0), address="", logs=None)
    return TrainerGroup(setup, ranks=place), place


def test_all_ranks_are_asked_and_the_first_ones_answer_counts():
    group, place = group_of(Link(0), Link(1))
    group.start()
    assert group.pids == [100, 101]
    assert group.stage(3) == ("stage", (3,), {})
    assert place.links[0].asked == place.links[1].asked
    group.close()
    assert [link.asked[-1][0] for link in place.links] == ["close", "close"] and place.closed == 1
    assert all(link.patience_s > 0 and not link.killed for link in place.links)


def test_rows_are_written_once_for_all_ranks_and_nothing_of_them_is_left(monkeypatch):
    monkeypatch.setattr(group_module, "_OTHERS_S", 0.1)
    group, place = group_of(Link(0), Link(1))
    group.start()
    rows = [Row("t", "g", (1, 2), (0, 1), (0.0, -0.5), 1.0, (3,))]
    verb, (file, estimator), _ = group.sequence_kl(rows, "k1")
    assert (verb, estimator) == ("sequence_kl", "k1") and not file.path.exists()
    assert [link.read for link in place.links] == [[rows], [rows]]
    assert place.links[0].asked == place.links[1].asked
    place.links[1].gone = True
    with pytest.raises(RankLost):
        group.train_step(rows, 1)
    assert not place.links[0].asked[-1][1][0].path.exists()


@pytest.mark.parametrize(("is_here", "loopback"), [(True, True), (False, False)])
def test_a_sender_on_another_host_is_not_met_on_loopback(is_here, loopback):
    group, place = group_of(Link(0, is_here), Link(1))
    group.start()
    group.wire_address(True)
    assert place.links[0].asked[-1][:2] == ("wire_address", (loopback,))


def test_a_place_that_breaks_off_leaves_no_rank():
    group, place = group_of(Link(0), Link(1), problem=TrainerError("no room"))
    with pytest.raises(TrainerError, match="no room"):
        group.start()
    assert all(link.killed and link.patience_s == 0 for link in place.links) and place.closed == 1
    assert group.pids == []


def test_a_rank_that_comes_after_the_close_is_killed_at_once():
    group, place = group_of(Link(0))
    group.close()
    place.links[0].gone = True  # by that
    with pytest.raises(TrainerError, match="Rank 0 of 1 of the trainer failed: it left during its start"):
        group.start()
    assert place.links[0].killed


def test_of_two_that_left_without_a_word_the_first_one_seen_is_named(monkeypatch):
    monkeypatch.setattr(group_module, "_OTHERS_S", 0.1)
    group, place = group_of(Link(0), Link(1), Link(2))
    group.start()
    place.links[1].gone = place.links[2].gone = True
    assert "Rank 1 of 3" in str(group.failure())
    assert place.closed == 1 and all(link.killed for link in place.links)


class Slow(Link):
    """Answers after `work_s`; until then it gives signs of life, `signs_s` seconds long."""

    work_s, signs_s = 0.9, 0.9

    def send(self, request):
        self.began_s = time.monotonic()
        self.answers = Answers(self, request)


class Answers:
    """What a slow rank has to say now."""

    def __init__(self, link, request):
        self.link, self.request = link, request

    def __bool__(self):
        time.sleep(0.01)
        return self.is_done or time.monotonic() - self.link.began_s < self.link.signs_s

    @property
    def is_done(self):
        return time.monotonic() - self.link.began_s > self.link.work_s

    def pop(self, _):
        return ("done", self.request) if self.is_done else ("alive",)


def test_a_step_of_three_times_the_patience_is_no_dead_rank_while_there_are_signs_of_life():
    group, _ = group_of(Slow(0), Slow(1))
    group._patience_s = 0.3
    group.start()
    assert group.train_step([], 1)[0] == "train_step"


def test_a_rank_that_is_silent_for_the_patience_is_named_whoever_else_gives_signs(monkeypatch):
    monkeypatch.setattr(group_module, "_OTHERS_S", 0.1)
    group, place = group_of(Slow(0), Slow(1), Slow(2))
    group._patience_s = 0.3
    group.start()
    place.links[1].signs_s = 0.1
    began_s = time.monotonic()
    with pytest.raises(RankLost, match=r"Rank 1 of 3 .*: no sign of life for 0 s during `train_step`") as lost:
        group.train_step([], 1)
    assert 0.4 < time.monotonic() - began_s < 0.85 and lost.value.rank == 1
    assert all(link.killed for link in place.links)


class Stages(Link):
    """Has buffers on a GPU of its own, or a problem."""

    problem = None

    def send(self, request):
        self.asked.append(request)
        self.read += [value.rows() for value in request[1] if isinstance(value, RowsFile)]
        handles = () if self.problem else ({"number": self.rank},)
        self.answers.append(("done", Staging((), {f"gpu{self.rank}": handles}, self.problem)))


def test_the_buffers_of_every_rank_are_told_by_its_gpu():
    group, place = group_of(Stages(0), Stages(1))
    group.start()
    staging = group.open_staging({"second": "first"})
    assert staging.handles == {"gpu0": ({"number": 0},), "gpu1": ({"number": 1},)} and staging.problem is None
    assert place.links[1].asked == [("open_staging", ({"second": "first"},), {})]
    place.links[1].problem = "OutOfMemoryError: none left"
    assert group.open_staging({}).problem == "rank 1: OutOfMemoryError: none left"


@pytest.mark.parametrize(("shares", "device", "given"), [(True, "cuda", 1), (False, "cuda", 0), (True, "cpu", 0)])
def test_a_rank_keeps_nothing_of_a_shared_gpu_for_later(monkeypatch, shares, device, given):
    emptied = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append(True))
    rank._give_back(SimpleNamespace(shares_gpus=shares, device=device))
    assert len(emptied) == given
