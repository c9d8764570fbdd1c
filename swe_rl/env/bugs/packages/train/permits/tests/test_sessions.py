from permits.sessions import SessionStore
from permits.sessions import lock_seconds
from permits.sessions import parse_bearer
from permits.sessions import same_token
from permits.sessions import show_age
from permits.sessions import token_kind


def test_open_notes_the_time():
    store = SessionStore()
    assert store.open("t", 100) is True
    assert (store.began, store.used) == ({"t": 100}, {"t": 100})


def test_open_not_twice():
    store = SessionStore()
    store.began["t"] = 50
    assert store.open("t", 100) is False
    assert store.began["t"] == 50


def test_open_not_when_locked():
    store = SessionStore()
    store.locked = True
    assert store.open("t", 100) is False


def test_is_alive_until_idle():
    store = SessionStore()
    store.began["t"] = 0
    store.used["t"] = 100
    assert store.is_alive("t", 1000) is True
    assert store.is_alive("t", 1001) is False


def test_is_alive_until_too_old():
    store = SessionStore()
    store.began["t"] = 100
    store.used["t"] = 36090
    assert store.is_alive("t", 36100) is True
    assert store.is_alive("t", 36101) is False


def test_is_alive_unknown():
    assert SessionStore().is_alive("t", 5) is False


def test_touch_moves_the_last_use():
    store = SessionStore()
    store.began["t"] = 0
    store.used["t"] = 100
    assert store.touch("t", 150) is True
    assert store.used["t"] == 150


def test_touch_never_moves_back():
    store = SessionStore()
    store.began["t"] = 0
    store.used["t"] = 100
    store.touch("t", 90)
    assert store.used["t"] == 100


def test_touch_not_a_dead_session():
    assert SessionStore().touch("t", 5) is False


def test_seconds_left_until_idle():
    store = SessionStore()
    store.began["t"] = 0
    store.used["t"] = 100
    assert store.seconds_left("t", 300) == 700


def test_seconds_left_until_too_old():
    store = SessionStore()
    store.began["t"] = 10
    store.used["t"] = 35900
    assert store.seconds_left("t", 36000) == 10


def test_seconds_left_over():
    store = SessionStore()
    store.began["t"] = 0
    store.used["t"] = 100
    assert store.seconds_left("t", 5000) == 0


def test_end_removes():
    store = SessionStore()
    store.began["t"] = store.used["t"] = 5
    assert store.end("t") is True
    assert store.began == {}


def test_end_unknown():
    assert SessionStore().end("t") is False


def test_oldest_began_first():
    store = SessionStore()
    store.began = {"a": 30, "b": 10, "c": 20}
    assert store.oldest() == "b"


def test_oldest_of_none():
    assert SessionStore().oldest() is None


def test_lock_lets_no_one_in():
    store = SessionStore()
    store.lock()
    assert store.locked is True


def test_lock_counts_sessions():
    store = SessionStore()
    store.began = {"a": 30, "b": 10}
    assert store.lock() == 2


def test_sweep_ends_dead_sessions():
    store = SessionStore()
    store.began = {"a": 0, "b": 0, "c": 0}
    store.used = {"a": 950, "b": 10, "c": 20}
    assert store.sweep(1000) == 2
    assert list(store.began) == ["a"]


def test_sweep_nothing():
    assert SessionStore().sweep(1000) == 0


def test_token_kind_api():
    assert token_kind("key-123") == "api"


def test_token_kind_temp():
    assert token_kind("123-t") == "temp"


def test_token_kind_user():
    assert token_kind("-t-123-key-") == "user"


def test_same_token_in_any_case():
    assert same_token("aB1", "Ab1")


def test_same_token_different():
    assert not same_token("a", "b")


def test_same_token_missing():
    assert same_token(None, "a") is False
    assert same_token("a", None) is False


def test_parse_bearer_in_any_case():
    assert parse_bearer("Bearer abc") == "abc"
    assert parse_bearer("bearer XYZ") == "XYZ"


def test_parse_bearer_other_kind():
    assert parse_bearer("Basic abc") is None


def test_parse_bearer_wrong_length():
    assert parse_bearer("Bearer") is None
    assert parse_bearer("Bearer a b") is None


def test_lock_seconds_from_the_third():
    assert lock_seconds(3) == 60
    assert lock_seconds(5) == 180


def test_lock_seconds_before():
    assert lock_seconds(2) == 0
    assert lock_seconds(0) == 0


def test_lock_seconds_at_most_an_hour():
    assert lock_seconds(500) == 3600


def test_show_age_hours_and_minutes():
    assert show_age(7500) == "2 h 5 min"


def test_show_age_short():
    assert show_age(59) == "0 h 0 min"
