from queuebox.limits import TokenBucket
from queuebox.limits import batches
from queuebox.limits import can_start
from queuebox.limits import least_loaded
from queuebox.limits import over_quota
from queuebox.limits import parse_rate
from queuebox.limits import rate_exceeded
from queuebox.limits import recent
from queuebox.limits import topic_matches
from queuebox.limits import worker_for


def test_refill_with_time():
    bucket = TokenBucket(20, 2)
    bucket.tokens = 5
    assert bucket.refill(3) == 11
    assert bucket.seen == 3


def test_refill_up_to_the_size():
    bucket = TokenBucket(10, 2)
    bucket.tokens = 5
    assert bucket.refill(60) == 10


def test_refill_not_without_time():
    bucket = TokenBucket(10, 2)
    bucket.tokens = 5
    bucket.seen = 7
    assert bucket.refill(6) == 5


def test_refill_at_the_same_second():
    bucket = TokenBucket(10, 2)
    bucket.tokens = 12
    assert bucket.refill(0) == 12


def test_spend_takes_tokens():
    bucket = TokenBucket(10, 2)
    assert bucket.spend(4) is True
    assert bucket.tokens == 6


def test_spend_all_or_one():
    assert TokenBucket(10, 2).spend(10) is True
    assert TokenBucket(10, 2).spend(1) is True


def test_spend_not_more_than_there_are():
    bucket = TokenBucket(10, 2)
    assert bucket.spend(11) is False
    assert bucket.tokens == 10


def test_spend_not_zero():
    assert TokenBucket(10, 2).spend(0) is False


def test_seconds_until_rounds_up():
    bucket = TokenBucket(10, 2)
    bucket.tokens = 1
    assert bucket.seconds_until(4) == 2


def test_seconds_until_enough():
    assert TokenBucket(10, 2).seconds_until(10) == 0
    assert TokenBucket(10, 2).seconds_until(4) == 0


def test_seconds_until_never():
    assert TokenBucket(10, 2).seconds_until(11) == -1


def test_recent_within_the_window():
    assert recent([1, 5, 8], 10, 6) == [5, 8]


def test_recent_leaves_out_the_edge():
    assert recent([4, 5], 10, 6) == [5]


def test_rate_exceeded_above_the_limit():
    assert rate_exceeded([8, 9, 10], 10, 5, 2)


def test_rate_exceeded_not_at_the_limit():
    assert not rate_exceeded([9, 10], 10, 5, 2)


def test_batches_exact():
    assert batches(10, 5) == 2


def test_batches_with_a_rest():
    assert batches(11, 5) == 3


def test_batches_of_one():
    assert batches(4, 1) == 4


def test_batches_of_a_wrong_size():
    assert batches(4, 0) == 0


def test_worker_for_in_turn():
    assert worker_for(4, ["a", "b", "c"]) == "b"
    assert worker_for(3, ["a", "b", "c"]) == "a"


def test_worker_for_without_workers():
    assert worker_for(4, []) == ""


def test_least_loaded_has_the_fewest():
    assert least_loaded({"a": 3, "b": 1, "c": 2}) == "b"


def test_least_loaded_of_equals():
    assert least_loaded({"b": 1, "a": 1}) == "a"


def test_least_loaded_of_none():
    assert least_loaded({}) is None


def test_can_start_below_the_limit():
    assert can_start(["a"], "b", 2)


def test_can_start_not_at_the_limit():
    assert not can_start(["a", "c"], "b", 2)


def test_can_start_not_twice():
    assert can_start(["a"], "a", 5) is False


def test_over_quota_above():
    assert over_quota({"b": 6, "a": 9}, {"a": 5, "b": 5}) == ["a", "b"]


def test_over_quota_not_at_the_quota():
    assert over_quota({"a": 5, "b": 2}, {"a": 5, "b": 5}) == []


def test_over_quota_without_quota():
    assert over_quota({"a": 500}, {}) == []


def test_parse_rate_per_second():
    assert parse_rate("5/s") == 300
    assert parse_rate("5x /Sec") == 300


def test_parse_rate_per_minute():
    assert parse_rate("90/m") == 90


def test_parse_rate_looks_at_the_beginning():
    assert parse_rate("90/mins") == 90


def test_topic_matches_exactly():
    assert topic_matches("jobs", "jobs")
    assert not topic_matches("jobs.new", "jobs")


def test_topic_matches_a_star():
    assert topic_matches("jobs.new", "jobs*")
    assert not topic_matches("old.jobs", "jobs*")


def test_topic_matches_a_star_in_front():
    assert not topic_matches("new.jobs", "*jobs")
