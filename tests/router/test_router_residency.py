from hypothesis import given
from hypothesis import strategies as st

from swe_rl.router.engine_book import PrefixCache


def test_the_longest_idle_leaves_first_and_its_head_stays_for_a_while():
    cache = PrefixCache()
    for program in "abc":
        cache.keep(program, 100)
    assert cache.squeeze(260) == []  # a is left with 60
    assert [cache.resident_tokens(program) for program in "abc"] == [60, 100, 100]
    assert cache.squeeze(240) == ["a"]
    assert cache.squeeze(140) == ["b"]
    assert cache.resident_tokens("a") == cache.resident_tokens("b") == 0
    assert (cache.resident_tokens("c"), cache.idle_tokens) == (100, 140)
    cache.keep("b", 30)
    assert cache.squeeze(40) == ["c"] and cache.resident_tokens("b") == 30
    assert cache.clear() == ["b"] and cache.idle_tokens == 0


_operations = st.lists(
    st.tuples(st.sampled_from(["keep", "drop", "squeeze"]), st.sampled_from("abcdef"), st.integers(0, 100)),
    max_size=60,
)


@given(_operations)
def test_it_is_a_list_of_tokens_in_the_order_of_their_last_use(operations):
    cache, model, full = PrefixCache(), [], {}
    for kind, program, number in operations:
        if kind in ("keep", "drop"):
            model = [one for one in model if one != program]
        if kind == "keep":
            cache.keep(program, number)
            model += [program] * number
            full[program] = number
        elif kind == "drop":
            cache.drop(program)
        else:
            resident = {one for one in full if cache.resident_tokens(one)}
            gone = cache.squeeze(number)
            model = model[max(0, len(model) - number) :]
            assert set(gone) == resident - {one for one in full if cache.resident_tokens(one)}
        assert cache.idle_tokens == len(model)
        for one, tokens in full.items():
            left = model.count(one)
            assert cache.resident_tokens(one) == (left if 2 * left >= tokens else 0)


def test_misses_shrink_the_model_faster_than_hits_let_it_grow():
    cache = PrefixCache()
    cache.observe(0, 0)
    assert cache.usable_share == 1.0
    for _ in range(5):
        cache.observe(100, 10)
    assert round(cache.usable_share, 3) == 0.9
    cache.keep("a", 100)
    assert cache.squeeze(100) == [] and cache.idle_tokens in (89, 90)  # of 0.9 times 100
    for _ in range(100):
        cache.observe(100, 96)
    assert cache.usable_share == 1.0
    for _ in range(100):
        cache.observe(100, 0)
    assert cache.usable_share == 0.5
