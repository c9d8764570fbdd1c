import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.ledger import Account, Fading

GROUPS = {None: 0, "g": 40, "h": 7}


def make_account(weight=1.0, half_life_s=0.0):
    return Account(weight, Fading(half_life_s))


_charges = st.lists(
    st.tuples(st.integers(0, 5000), st.sampled_from(list(GROUPS)), st.booleans(), st.integers(0, 100)), max_size=30
)


@given(_charges, st.randoms(use_true_random=False), st.sampled_from([0.0, 3.0]))
def test_whatever_is_charged_can_be_taken_back_to_exactly_zero(wanted, order, half_life_s):
    account = make_account(0.3, half_life_s)
    charges = []
    for now, (tokens, group, acting, age) in enumerate(wanted):
        charges.append(account.charge(tokens, group, GROUPS[group], acting, float(now)))
        if age % 3 == 0:
            account.take_back(charges.pop(order.randrange(len(charges))), float(now))
    order.shuffle(charges)
    for charge in charges:
        assert not account.empty
        account.take_back(charge, 200.0)
    counts = (account.running, account.acting, account.running_tokens, account.acting_tokens, account.prefix_tokens)
    assert counts == (0, 0, 0, 0, 0) and account.empty and account.load_tokens(300.0) == 0


@given(_charges)
def test_a_load_is_the_sum_of_what_is_charged_with_each_prefix_once(wanted):
    """A prefix runs while one of its programs does, else it weighs as little as they."""
    account = make_account(0.5)
    running = {group for _, group, acting, _ in wanted if not acting}
    groups = {group for _, group, _, _ in wanted}
    expected = sum(GROUPS[group] * (1 if group in running else 0.5) for group in groups)
    for tokens, group, acting, _ in wanted:
        expected += max(0, tokens - GROUPS[group]) * (0.5 if acting else 1)
        account.charge(tokens, group, GROUPS[group], acting, 0.0)
    assert account.load_tokens(0.0) == expected


@given(_charges, st.integers(0, 5000), st.sampled_from(list(GROUPS)), st.sampled_from([0, 5, 300]))
def test_a_need_is_what_the_load_rises_by(wanted, tokens, group, common):
    account = make_account(0.5)
    account.common_tokens = common
    for charged, its_group, acting, _ in wanted:
        account.charge(charged, its_group, GROUPS[its_group], acting, 0.0)
    before, need = account.load_tokens(0.0), account.need_tokens(tokens, group, GROUPS[group])
    account.charge(tokens, group, GROUPS[group], False, 0.0)
    assert account.load_tokens(0.0) - before == pytest.approx(need, abs=1)  # tokens are whole


def test_what_all_programs_begin_with_is_there_once():
    account = make_account(0.5)
    account.common_tokens = 30
    assert account.empty and account.load_tokens(0.0) == 0
    first = account.charge(100, None, 0, False, 0.0)
    account.charge(70, "g", 40, True, 0.0)
    assert account.load_tokens(0.0) == 30 + 70 + 0.5 * (30 + 10)
    assert account.idle_tokens(70, "g", 40) == 30 and account.idle_tokens(70, "h", 40) == 40
    account.take_back(first, 0.0)
    assert account.load_tokens(0.0) == 20
    account.common_tokens = 0  # learned anew: what was charged is taken back as it was made
    account.charge(50, "g", 40, False, 0.0)
    assert account.load_tokens(0.0) == 10 + 10 + 0.5 * 30


def test_a_prefix_leaves_with_its_last_program():
    account = make_account()
    first, second = (account.charge(100, "g", 40, True, 0.0) for _ in range(2))
    assert account.alone_tokens(first) == 0
    account.take_back(second, 0.0)
    assert account.alone_tokens(first) == 40
    assert account.alone_tokens(account.charge(9, None, 0, True, 0.0)) == 0


def test_siblings_share_their_prefix():
    account = make_account()
    first = account.charge(100, "g", 40, False, 0.0)
    assert not account.hosts("h") and account.hosts("g") and not account.hosts(None)
    assert account.need_tokens(100, "g", 40) == 60
    second = account.charge(70, "g", 40, True, 0.0)
    assert (account.load_tokens(0.0), account.pinned_tokens) == (130, 100)
    account.take_back(first, 0.0)
    assert account.load_tokens(0.0) == 70
    account.take_back(second, 0.0)
    assert not account.hosts("g")


def test_acting_tokens_fade():
    account = make_account(0.5, half_life_s=10.0)
    old = account.charge(800, None, 0, True, 0.0)
    assert account.load_tokens(10.0) == pytest.approx(200)
    account.charge(100, None, 0, True, 10.0)
    assert account.load_tokens(20.0) == pytest.approx(125)
    account.take_back(old, 20.0)
    assert account.load_tokens(20.0) == pytest.approx(25)
    assert account.acting_tokens == 100


@given(st.lists(st.tuples(st.integers(0, 9999), st.floats(0, 5)), min_size=1, max_size=30))
def test_a_fading_sum_is_the_sum_of_its_parts(parts):
    fading, now, added = Fading(2.0), 0.0, []
    for tokens, pause_s in parts:
        now += pause_s
        fading.add(tokens, now)
        added.append((tokens, now))
    gone = added[::2]
    for tokens, since in gone:
        fading.remove(tokens, since, now)
    left = sum(tokens * 0.5 ** ((now - since) / 2.0) for tokens, since in added[1::2])
    assert fading.value(now) == pytest.approx(left, abs=1e-6)
