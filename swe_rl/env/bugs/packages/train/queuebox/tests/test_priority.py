from queuebox.priority import Job
from queuebox.priority import aged_priority
from queuebox.priority import all_done
from queuebox.priority import boost
from queuebox.priority import by_urgency
from queuebox.priority import lane
from queuebox.priority import most_urgent
from queuebox.priority import owner_waits
from queuebox.priority import parse_priority
from queuebox.priority import rank
from queuebox.priority import split_urgent
from queuebox.priority import ticket_rank


def test_parse_priority_by_name():
    assert parse_priority("High") == 9
    assert parse_priority("normal") == 5


def test_parse_priority_by_number():
    assert parse_priority("p3") == 3


def test_parse_priority_is_limited():
    assert parse_priority("12") == 9


def test_parse_priority_unknown():
    assert parse_priority("soon") is None
    assert parse_priority("3p") is None


def test_most_urgent_has_the_highest():
    jobs = [Job("a", 1), Job("b", 7), Job("c", 3)]
    assert most_urgent(jobs).name == "b"


def test_most_urgent_takes_the_first_of_equals():
    assert most_urgent([Job("a", 7), Job("b", 7)]).name == "a"


def test_most_urgent_skips_done_jobs():
    jobs = [Job("a", 9, done=True), Job("b", 2)]
    assert most_urgent(jobs).name == "b"


def test_most_urgent_of_none():
    assert most_urgent([]) is None


def test_by_urgency_urgent_first():
    assert by_urgency([Job("a", 1), Job("b", 7)]) == ["b", "a"]


def test_by_urgency_keeps_the_order_of_equals():
    assert by_urgency([Job("b", 7), Job("a", 7)]) == ["b", "a"]


def test_aged_priority_grows():
    assert aged_priority(2, 35) == 5
    assert aged_priority(2, 9) == 2


def test_aged_priority_is_limited():
    assert aged_priority(8, 100) == 9


def test_split_urgent_from_the_limit():
    jobs = [Job("a", 5), Job("b", 4), Job("c", 6)]
    assert split_urgent(jobs, 5) == (["a", "c"], ["b"])


def test_split_urgent_of_none():
    assert split_urgent([], 5) == ([], [])


def test_lane_in_turn():
    assert [lane(number, 3) for number in range(4)] == [1, 2, 3, 1]


def test_lane_of_a_large_priority():
    assert lane(11, 4) == 4


def test_all_done_needs_each():
    assert not all_done([Job("a", done=True), Job("b")])


def test_all_done_true():
    assert all_done([Job("a", done=True)])
    assert all_done([])


def test_owner_waits_for_an_open_job():
    assert owner_waits([Job("a", owner="eve"), Job("b", owner="ann")], "ann")


def test_owner_waits_not_for_done_jobs():
    assert not owner_waits([Job("a", owner="ann", done=True)], "ann")


def test_owner_waits_not_for_others():
    assert not owner_waits([Job("a", owner="eve")], "ann")


def test_rank_by_priority():
    jobs = [Job("a", 1), Job("b", 7)]
    assert rank(jobs, "b") == 1
    assert rank(jobs, "a") == 2


def test_rank_unknown():
    assert rank([Job("a", 1)], "x") == 0


def test_boost_raises():
    job = Job("a", 3)
    assert boost(job, 1) is True
    assert job.priority == 4


def test_boost_needs_an_amount():
    job = Job("a", 3)
    assert boost(job, 0) is False
    assert job.priority == 3


def test_boost_not_when_done():
    assert boost(Job("a", 3, done=True), 2) is False


def test_ticket_rank_behind_smaller_ones():
    assert ticket_rank([7, 3, 9, 5], 7) == 3


def test_ticket_rank_first():
    assert ticket_rank([7, 8], 7) == 1


def test_ticket_rank_alone():
    assert ticket_rank([], 7) == 1
