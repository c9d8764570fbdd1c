"""Every number of the schema has a range, and a number outside of it is refused, whatever else it would break."""

import dataclasses
import math
from contextlib import suppress
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host, Severity
from swe_rl.config.choices import JobName
from swe_rl.config.compose import compose
from swe_rl.config.keys import key_types
from swe_rl.config.ranges import LARGEST, Range, ranges_of, replace_out_of_range, wrong_numbers
from swe_rl.config.schema import Config, OutcomeConfig
from swe_rl.job.describe import describe_topic

HOST = Host(environment={}, file_exists=lambda _: False, folder_writable=lambda _: True, version=lambda _: "")
CONFIG = dataclasses.replace(Config(), rollout=dataclasses.replace(Config().rollout, outcomes={"a": OutcomeConfig()}))


def schemas(schema=Config):
    yield schema
    for hint in get_type_hints(schema).values():
        for part in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield from schemas(part)


def is_number(hint):
    return hint in (int, float) or (get_origin(hint) in (Union, UnionType) and any(map(is_number, get_args(hint))))


NUMBERS = sorted(key for key, hint in key_types().items() if is_number(hint))


def changed(node, key, value):
    name, _, rest = key.partition(".")
    return dataclasses.replace(node, **{name: changed(getattr(node, name), rest, value) if rest else value})


def range_of(key):
    group, _, name = key.rpartition(".")
    return ranges_of(key_types()[group])[name]


def refused(config, host=HOST):
    return {one.key for one in check_config(config, host=host) if one.rule_id == "range"}


def test_no_number_is_without_a_range():
    assert len(list(schemas())) > 18
    for schema in schemas():
        numbers = {name for name, hint in get_type_hints(schema).items() if is_number(hint)}
        assert numbers == set(ranges_of(schema)), schema


def test_a_range_belongs_to_a_number_of_its_kind():
    """A whole number's ends are whole; no range lets in what cannot be reckoned with."""
    for schema in schemas():
        hints, allowed = get_type_hints(schema), ranges_of(schema)
        for name, one in allowed.items():
            assert math.nan not in one and math.inf not in one and -math.inf not in one
            if hints[name] is int:
                assert one.least == int(one.least) and one.above is one.below is None


def test_defaults_are_within():
    assert list(wrong_numbers(CONFIG)) == [] and replace_out_of_range(CONFIG) == CONFIG


@pytest.mark.parametrize(
    "override",
    [
        "trainer.beta1=1.5", "trainer.beta2=1", "trainer.weight_decay=-0.1", "engine.num_threads=0",
        "trainer.num_threads=0", "sandbox.cpus=-1", "agent.max_observation_chars=0", "gateway.max_calls=0",
        "gateway.max_idle_sessions=-1", "gateway.session_idle_s=0",
        "env.max_tests=-1", "trainer.lr=nan", "trainer.grad_clip=inf", "rollout.temperature=nan",
        "router.acting_token_weight=1.1", "rollout.typical_trajectory_s=0", "algo.mask_low=-1", "trainer.seed=-1",
        "hardware.cpus_per_node=0", "rollout.n=1e30", "algo.clip_c=0.5", "rollout.outcomes.infra_error.retries=-1",
    ],
)  # fmt: skip
def test_refused(override):
    try:
        composed = compose([override])
    except Exception as error:
        assert "must be a whole number" in str(error)  # noqa: PT017
        return
    found = [one for one in check_config(composed.config, composed.origins, HOST) if one.severity is Severity.error]
    assert [(one.rule_id, one.key) for one in found] == [("range", override.partition("=")[0])]


def test_a_number_that_follows_a_wrong_one_is_not_said_as_well():
    composed = compose(["rollout.n=0", "rollout.infra_retries=-1"])
    assert {one.key for one in check_config(composed.config, composed.origins, HOST)} == {
        "rollout.n",
        "rollout.infra_retries",
    }


def test_other_mistakes_are_said_beside_a_wrong_number():
    rules = {
        one.rule_id for one in check_config(compose(["trainer.lr=-1", "engine.max_model_len=1000"]).config, host=HOST)
    }
    assert rules == {"range", "engine_length"}


def test_nobody_is_refused_for_a_number_that_the_job_does_not_read():
    given = ["trainer.lr=-1", "trainer.prompts_per_mini_batch=0", "router.tick_s=0"]
    assert refused(compose(given).config) == {item.partition("=")[0] for item in given}
    assert refused(compose([*given, "job=sft"]).config) == set()
    assert refused(compose([*given, "job=rollout"]).config) == {"router.tick_s"}


@pytest.mark.parametrize("key", NUMBERS)
def test_just_outside_is_refused(key):
    allowed = range_of(key)
    kind = int if key_types()[key] is int else float
    beyond = [kind(allowed.most) * 2 + 1 if allowed.below is None else kind(allowed.below)]
    if allowed.least is not None:
        beyond.append(kind(allowed.least) - 1)
    elif not allowed.or_zero:
        beyond.append(kind(allowed.above))
    assert all(value not in allowed for value in beyond)
    job = {"sft": JobName.sft, "runtime": JobName.runtime, "mine": JobName.mine}.get(
        key.partition(".")[0], JobName.train
    )
    config = dataclasses.replace(CONFIG, job=dataclasses.replace(CONFIG.job, name=job))
    for value in beyond:
        found = [one for one in check_config(changed(config, key, value), host=HOST) if one.rule_id == "range"]
        assert [one.key for one in found] == [key] and found[0].message.startswith("must be ")


def test_what_is_said_of_a_range():
    assert Range(least=0, below=1).said() == "at least 0 and below 1"
    assert Range(above=1, or_zero=True).said() == "0, or above 1"
    assert Range(least=1).said(3) == "at least 1"
    assert Range(least=1).said(LARGEST * 2) == "at least 1 and at most 1,000,000,000"
    assert (Range(least=2).nearest(1), Range(least=2, most=5).nearest(7)) == (2, 5)
    assert Range(above=2).nearest(1) is Range(least=2).nearest(math.nan) is Range(below=1).nearest(4) is None


def test_a_key_is_described_with_its_range():
    (record,) = describe_topic(CONFIG, "trainer.beta1")
    assert record["type"] == "a number, at least 0 and below 1"
    (record,) = describe_topic(CONFIG, "rollout.typical_trajectory_s")
    assert record["type"] == "a number or null, above 0 and at most 2,000,000"


ODD = st.one_of(
    st.sampled_from([-1, 0, 1, 2, 3, 10**9, 10**12, -(10**18), 10**400]),
    st.sampled_from([math.nan, math.inf, -math.inf, 5e-324, 1e-9, 0.5, 1e308, -0.0]),
    st.integers(),
    st.floats(),
)
JOBS = st.sampled_from([JobName.train, JobName.eval, JobName.rollout, JobName.serve, JobName.sft, JobName.runtime])


def of_kind(hint, value):
    """As OmegaConf gives it: a whole number for a key that wants one, else a float."""
    if int in (hint, *get_args(hint)):
        return int(value) if isinstance(value, int) or math.isfinite(value) else -1
    with suppress(OverflowError):
        return float(value)
    return math.inf


@given(odd=st.dictionaries(st.sampled_from(NUMBERS), ODD, min_size=1, max_size=4), job=JOBS, large=st.booleans())
def test_no_number_breaks_a_rule(odd, job, large):
    config = LARGE if large else CONFIG
    config = dataclasses.replace(config, job=dataclasses.replace(config.job, name=job))
    for key, value in odd.items():
        config = changed(config, key, of_kind(key_types()[key], value))
    found = check_config(config, host=HOST)
    assert all(finding.fix and finding.message for finding in found)
    assert list(wrong_numbers(replace_out_of_range(config))) == []
    if not any(finding.severity is Severity.error for finding in found):
        check_config(replace_out_of_range(config), host=HOST)


LARGE = compose(["model=qwen3_14b", "layout=dp4", "hardware=h100x8", "env=swe_gym", "router=tr", "runtime=job"]).config
