import json

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.engine import token_ids as module
from swe_rl.engine.embedded.slot_cache import as_ids
from swe_rl.engine.engine import SamplingParams
from swe_rl.engine.server.wire import TokenIn, request_body
from swe_rl.engine.token_ids import TokenIds, encode_plain

_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@given(st.lists(st.tuples(st.integers(0, 30), _ids, st.booleans()), max_size=30))
def test_values_never_change_whatever_grows_from_them(steps):
    """Each step goes on from some value before it, as retries and branches do."""
    values = [(TokenIds(), [])]
    for pick, new, written in steps:
        ids, expected = values[pick % len(values)]
        values.append((ids.extended(np.array(new, np.int32) if pick % 2 else new), [*expected, *new]))
        if written:
            values[-1][0].json()
    for ids, expected in values:
        assert list(ids) == expected == json.loads(ids.json()) == ids.array().tolist() == list(as_ids(ids))
        assert (len(ids), ids[1:3], ids == expected) == (len(expected), tuple(expected[1:3]), True)
        assert as_ids(ids).dtype == np.int64


def test_what_goes_on_shares_memory_and_what_was_written(monkeypatch):
    encoded = []

    def encode(ids):
        encoded.append(len(ids))
        return orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)

    monkeypatch.setattr(module, "_encode_ids", encode)
    ids = TokenIds(range(1000))
    for _ in range(50):
        longer = ids.extended([1, 2, 3])
        assert json.loads(longer.json()) == [*ids, 1, 2, 3]
        assert np.shares_memory(longer.array(), ids.extended([1, 2, 3]).array())  # asked again
        ids = longer
    assert encoded == [1003, *[3] * 49]
    held = {id(ids._buffer)}
    branch = ids.extended([7]) and ids.extended([8])
    assert id(ids._buffer) in held and not np.shares_memory(branch.array(), ids.array())


def test_arrays_are_read_only_and_stay():
    ids = TokenIds([1, 2])
    array = ids.array()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5
    ids.extended(range(100_000))
    assert array.tolist() == [1, 2]


def test_an_id_that_is_none_is_refused():
    with pytest.raises(OverflowError):
        TokenIds([2**31])


@pytest.mark.parametrize("kind", list(TokenIn))
def test_a_server_is_sent_what_it_is_sent_of_a_list(kind):
    prompt, params = [5, 2**31 - 1, 0], SamplingParams(4)
    bodies = [request_body(kind, ids, params, model="m", request_id="r") for ids in (prompt, TokenIds(prompt))]
    assert json.loads(orjson.dumps(bodies[1], default=encode_plain)) == bodies[0]
    with pytest.raises(TypeError, match="object"):
        orjson.dumps({"x": object()}, default=encode_plain)
