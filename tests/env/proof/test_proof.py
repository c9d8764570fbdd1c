"""Proofs of instances: what counts as one, what mends an environment, and who is left out without one."""

import asyncio
import errno
import json
import os
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from swe_rl.config.choices import SandboxKind, Unproven
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.env import Grade, GradeError, NotStartedError, PytestSession
from swe_rl.env.grading import twin_trial
from swe_rl.env.make import make_env
from swe_rl.env.patch import NOOP_PATCH
from swe_rl.env.proof import mend
from swe_rl.env.proof.mend import GoldFailure, find_ways, missing_packages, spread_releases
from swe_rl.env.proof.prove import MAX_TRIALS, Prover, UntriedError, prove_all
from swe_rl.env.proof.record import Proof, ProofBook, Standing, book_of, read_proofs
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.releases import FORWARD
from swe_rl.env.source_build.sdist import Release
from swe_rl.files.disk import DiskError
from swe_rl.run.proving import line_of
from swe_rl.sandbox.sandbox import SandboxError

SOURCE = Source("b-1.0", "applies forward", "3.9")
INSTANCE = Instance("a__b-1", "a/b", "c" * 40, "s", "GOLD", "t", ("x",), ("y",), source=SOURCE)
DATE = datetime(2019, 5, 1, tzinfo=UTC)


class Suite:
    """An environment whose tests pass by `passes(instance, patch)`: the failing tests, or an error that is raised."""

    def __init__(self, failing, log="", digest="packages"):
        self.failing, self.log, self.digest = failing, log, digest
        self.graded, self.built, self.releases, self.asked = [], [], [], []

    def workspace(self, instance):
        self.built.append(instance.source)
        if isinstance(wrong := self.failing(instance, ""), BuildError | InstanceError):
            raise wrong

    async def grade(self, instance, patch, sandboxes, timeout_s):
        self.graded.append(patch)
        failing = self.failing(instance, patch)
        if isinstance(failing, Exception):
            raise failing
        tests = {test: test not in failing for test in ("x", "y")}
        return Grade(not failing, True, {"x": tests["x"]}, {"y": tests["y"]}, log=self.log, log_tail=self.log)

    def released(self, instance):
        return DATE

    def nearer(self, instance):
        self.asked.append(instance.instance_id)
        if isinstance(self.releases, Exception):
            raise self.releases
        return self.releases

    def environment_digest(self, instance):
        return self.digest

    def digests(self, instance):
        return "tests", f"{instance.source and instance.source.sdist}"


def prove(tests, instance=INSTANCE, runs=1):
    return asyncio.run(Prover(tests, None, runs, 60.0).prove(instance))


def honest(instance, patch):
    return [] if patch == "GOLD" else ["x"]


@pytest.fixture(autouse=True)
def pythons(monkeypatch):
    monkeypatch.setattr(mend, "_is_here", lambda python: python in ("3.7", "3.8"))


def test_gold_resolves_it_and_a_real_change_of_nothing_does_not():
    tests = Suite(honest)
    proof = prove(tests, runs=3)
    assert proof.proven and proof.gold == ("resolved",) * 3 and proof.noop == "unresolved" and not proof.reason
    assert tests.graded == ["GOLD"] * 3 + [NOOP_PATCH]
    assert (proof.tests, proof.made_of, proof.environment) == ("tests", "b-1.0", "packages")
    assert "new file mode" in NOOP_PATCH and proof.source is None


@pytest.mark.parametrize("twinned", [frozenset(), frozenset({"x"})])
def test_an_instance_without_a_twin_is_proven_and_says_so(twinned, tmp_path):
    class Judged(Suite):
        async def grade(self, *args):
            return replace(await super().grade(*args), session=PytestSession(twinned=twinned))

    proof = prove(Judged(honest))
    assert proof.proven and proof.untwinned is not bool(twinned)
    assert ("no twin" in line_of(proof)) is proof.untwinned
    assert proof.weak_twins == (() if twinned else None)
    book = ProofBook(tmp_path / "proofs.jsonl")
    book.put(proof)
    assert read_proofs(tmp_path / "proofs.jsonl") == {proof.instance_id: proof}


def test_a_full_disk_ends_the_proving_and_the_next_one_goes_on(tmp_path, monkeypatch):
    """Each proof is in the file once it is made: the one that found no room is made again, alone."""
    instances = [replace(INSTANCE, instance_id=f"a__b-{number}") for number in range(3)]
    write, written = os.write, []

    def full(descriptor, data):
        written.append(data)
        if len(written) == 2:
            return write(descriptor, data[: len(data) // 2])
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    def proving(todo):
        suite, book = Suite(honest), ProofBook(tmp_path / "proofs.jsonl")
        prover = Prover(suite, None, 1, 60.0)
        asyncio.run(prove_all(prover, todo, lambda _, proof: book.put(proof), 1))
        return suite

    with monkeypatch.context() as patch:
        patch.setattr("swe_rl.logger.jsonl.os.write", full)
        with pytest.raises(DiskError) as caught:  # as it is, in no group of errors
            proving(instances)
    said = str(caught.value)
    assert said.startswith(f"cannot write {tmp_path / 'proofs.jsonl'}: No space left on device")
    assert "point env.proofs at another disk" in said and "the same command goes on where it was" in said
    assert list(read_proofs(tmp_path / "proofs.jsonl")) == ["a__b-0"]
    left = [one for one in instances if ProofBook(tmp_path / "proofs.jsonl").of(one.instance_id) is None]
    proving(left)
    assert list(read_proofs(tmp_path / "proofs.jsonl")) == [one.instance_id for one in instances]
    assert len((tmp_path / "proofs.jsonl").read_text().splitlines()) == 3


def test_tests_that_pass_without_a_fix_prove_nothing():
    proof = prove(Suite(lambda instance, patch: []))
    assert not proof.proven and proof.reason == "a change that fixes nothing resolves it"


def test_a_test_that_passes_in_some_of_the_runs_is_named():
    outcomes = iter([[], ["y"], []])
    proof = prove(Suite(lambda instance, patch: next(outcomes) if patch == "GOLD" else ["x"]), runs=3)
    assert not proof.proven and proof.flaky == ("y",) and "2 of 3 runs of its gold patch resolve it" in proof.reason


def test_a_python_that_mends_it_is_in_the_proof_and_helps_the_next_of_that_release():
    def failing(instance, patch):
        return honest(instance, patch) if instance.source.python == "3.7" else BuildError("importlib-metadata 0.23")

    tests = Suite(failing)
    prover = Prover(tests, None, 1, 60.0)
    proof = asyncio.run(prover.prove(INSTANCE))
    assert proof.proven and proof.source == {**SOURCE.to_record(), "python": "3.7"}
    assert [trial.failing for trial in proof.trials] == [-1] * (len(proof.trials) - 1) + [0]
    assert proof.applied(INSTANCE).source.python == "3.7" and proof.made_of == "b-1.0"
    tests.built.clear()
    other = asyncio.run(prover.prove(replace(INSTANCE, instance_id="a__b-2")))
    assert other.proven and [source.python for source in tests.built][:2] == ["3.9", "3.7"]


def test_packages_that_skipped_tests_name_are_added():
    log = "SKIPPED [1] b/tests/__init__.py:73: requires dask\nSKIPPED [2] x.py:3: could not import 'yaml': No module\n"

    def failing(instance, patch):
        return honest(instance, patch) if set(instance.source.optional) >= {"dask", "pyyaml"} else ["y"]

    proof = prove(Suite(failing, log))
    assert proof.proven and proof.source["optional"] == ["pyyaml", "dask"]
    assert proof.trials[-1].change == "with pyyaml, dask"  # two tests wait for the one, and one for the other
    assert missing_packages("x.py: skipped because it requires the network\nPASSED requires numpy", SOURCE) == []
    assert missing_packages(log, replace(SOURCE, packages=("dask>=2",))) == ["pyyaml"]


NAMED = "".join(
    f"SKIPPED [{9 - at}] x.py:{at}: requires {name}\n" for at, name in enumerate(("p", "dask", "q", "spoil"))
)
NAMED = NAMED.replace("requires p\n", "requires pp\n").replace("requires q\n", "requires qq\n")


def spoilt(instance, patch):
    """As xarray 0.17 is by `iris`, a package of that name which is another one: nothing can be imported any more."""
    if "spoil" in instance.source.optional:
        return ["x", "y"]
    return honest(instance, patch) if {"dask", "qq"} <= set(instance.source.optional) else ["y"]


def test_what_names_a_package_of_another_name_gets_that_package():
    assert missing_packages("SKIPPED [2] x.py:3: requires iris\n", SOURCE) == ["scitools-iris"]


def test_one_package_that_spoils_the_others_is_found_and_left_out():
    proof = prove(Suite(spoilt, NAMED))
    assert proof.proven and proof.source["optional"] == ["pp", "dask", "qq"], proof.trials
    assert [(trial.change, trial.failing) for trial in proof.trials] == [
        ("", 1),
        ("with pp, dask, qq, spoil", 2),
        ("with pp, dask", 1),
        ("with qq, spoil", 2),
        ("with qq", 1),
        ("with spoil", 2),
        ("with pp, dask, qq", 0),
    ]


def test_tests_that_do_not_start_name_what_they_need_far_from_the_end_of_the_log():
    log = "E   ModuleNotFoundError: No module named 'dask'\n" + "warning: something else\n" * 500

    def failing(instance, patch):
        if "dask" in instance.source.optional:
            return honest(instance, patch)
        return NotStartedError("the tests of a__b-1 did not start, and without the patch they do not either: else", log)

    tests = Suite(failing)
    proof = prove(tests)
    assert proof.proven and [trial.change for trial in proof.trials] == ["", "with dask"]
    assert tests.graded == ["GOLD", "GOLD", NOOP_PATCH]  # the grader itself tried it without the patch
    lost = prove(Suite(lambda instance, patch: NotStartedError("they did not start", log)))
    assert not proof.reason and not lost.proven and lost.reason.startswith("they did not start")
    assert lost.log_tail.endswith("something else\n") and not lost.is_verdict


def test_an_environment_whose_tests_fail_is_nearer_than_one_in_which_none_starts():
    def failing(instance, patch):
        if instance.source.python != "3.8":
            return NotStartedError("they did not start", "crash")
        return honest(instance, patch) if instance.source.until else ["x", "y"]

    proof = prove(Suite(failing))
    assert proof.proven and proof.source["python"] == "3.8" and proof.source["until"] == "2020-04-30"


def test_a_release_before_pytest_had_its_command_gets_one_that_has_it():
    """requests 2.5 of 2014: the evaluation script runs `pytest`, and that year's package has only `py.test`.

    A newer pytest needs its own packages of its own date: with `py` of 2014 there is none after 2.7.
    """
    changes = [
        way.change
        for way in find_ways(SOURCE, datetime(2014, 12, 1, tzinfo=UTC), GoldFailure("pytest: command not found"))
    ]
    assert changes[:2] == ["with pytest of 2016-12-31", "with pytest of 2021-04-05"]
    dated = next(iter(find_ways(SOURCE, datetime(2014, 12, 1, tzinfo=UTC), GoldFailure("")))).source.until_of
    assert {"pytest=2016-12-31", "py=2016-12-31", "pluggy=2016-12-31", "attrs=2016-12-31"} <= set(dated)
    attrs = replace(SOURCE, sdist="attrs-18.0")  # whose tree is not to be replaced
    assert not [
        name for name in next(iter(find_ways(attrs, DATE, GoldFailure()))).source.until_of if name.startswith("attrs=")
    ]
    late = [way.change for way in find_ways(SOURCE, datetime(2023, 1, 1, tzinfo=UTC), GoldFailure(""))]
    assert [change for change in late if "pytest" in change] == ["with pytest of 2023-12-31"]


def test_every_way_changes_the_source_and_there_is_an_end():
    tried = list(find_ways(SOURCE, DATE, GoldFailure("ModuleNotFoundError: No module named 'bs4'")))
    assert [way.change for way in tried] == [
        "with beautifulsoup4",
        "with pytest of 2019-12-31",
        "with pytest of 2021-04-05",
        "with Python 3.8",
        "with Python 3.7",
        "with packages until 2020-04-30",
        "with packages until 2019-05-08",
        "with packages until 2021-04-30",
    ]
    assert len({way.source for way in tried} | {SOURCE}) == len(tried) + 1
    assert not [way for way in find_ways(SOURCE, DATE, GoldFailure(runs_pytest=False)) if "pytest" in way.change]
    tests = Suite(lambda instance, patch: ["y"])
    proof = prove(tests)
    assert (
        not proof.proven and len(proof.trials) <= MAX_TRIALS and "with its gold patch 1 tests fail: y" in proof.reason
    )


def test_a_mend_ends_where_the_tests_that_it_started_look_for_another_machine():
    """requests 2.5: with a pytest that starts, what fails is that httpbin.org is not there."""
    tests = Suite(lambda instance, patch: ["y"], "socket.gaierror: [Errno -3] Temporary failure in name resolution")
    graded = tests.grade

    async def grade(instance, *rest):
        if not instance.source.until_of:
            raise NotStartedError("the tests of a__b-1 did not start", "pytest: command not found")
        return await graded(instance, *rest)

    tests.grade = grade
    proof = prove(tests)
    assert not proof.proven and [trial.change for trial in proof.trials] == ["", "with pytest of 2019-12-31"]
    assert "its tests look for another machine" in proof.reason


def test_tests_that_look_for_another_machine_are_not_mended():
    proof = prove(
        Suite(lambda instance, patch: ["y"], "socket.gaierror: [Errno -3] Temporary failure in name resolution")
    )
    assert not proof.proven and len(proof.trials) == 1 and "look for another machine" in proof.reason


def test_a_row_that_names_tests_that_there_are_not_is_not_mended():
    script = ": '>>>>> Start Test Output'\n./tests/runtests.py a\n"
    row = replace(INSTANCE, eval_script=script)
    proof = prove(Suite(lambda instance, patch: ["y"], "OK\n>>>>> Test Exit Code: 0\n"), row)
    assert not proof.proven and len(proof.trials) == 1
    assert "all tests pass, but 1 that its row names are not among them: y" in proof.reason


NEARER = [Release(f"b-0.{number}", FORWARD, datetime(2018, 5, number, tzinfo=UTC)) for number in (9, 8, 7, 6)]


def test_a_release_nearer_to_the_base_commit_is_tried_before_what_explains_nothing():
    """xarray-4075: 870 tests that its row names are not in the tree of 0.17, and few were skipped."""

    def failing(instance, patch):
        return honest(instance, patch) if instance.source.sdist == "b-0.8" else ["y"]

    tests = Suite(failing, "")
    tests.releases = NEARER
    prover = Prover(tests, None, 1, 60.0)
    proof = asyncio.run(prover.prove(INSTANCE))
    assert proof.proven and proof.source == {**SOURCE.to_record(), "sdist": "b-0.8", "python": "3.7"}
    assert [trial.change for trial in proof.trials] == [
        "",
        "from b-0.9, nearer to the base commit on Python 3.7",
        "from b-0.8, nearer to the base commit on Python 3.7",
    ]
    assert tests.asked == ["a__b-1"] and proof.made_of == "b-1.0"  # what the row says: so the proof holds for the row
    assert proof.applied(INSTANCE).source.sdist == "b-0.8"
    tests.releases = []
    other = asyncio.run(prover.prove(replace(INSTANCE, instance_id="a__b-2")))  # whose patches may not fit b-0.8
    assert not other.proven and not any("b-0.8" in trial.change for trial in other.trials)
    never = Suite(lambda instance, patch: ["y"])
    never.releases = NEARER
    changes = [trial.change for trial in prove(never).trials]
    assert sum("nearer" in change for change in changes) == 3 and "with Python 3.8" in changes


def test_packages_come_first_where_as_many_tests_were_skipped_as_fail():
    tests = Suite(
        lambda instance, patch: honest(instance, patch) if instance.source.optional else ["y"],
        "SKIPPED [1] x.py:1: requires dask\n",
    )
    tests.releases = NEARER
    proof = prove(tests)
    assert proof.proven and [trial.change for trial in proof.trials] == ["", "with dask"] and not tests.asked


def test_a_row_whose_release_its_patches_do_not_fit_is_made_of_one_that_they_fit():
    def failing(instance, patch):
        if instance.source.sdist == "b-1.0":
            return InstanceError("patch does not fit b-1.0")
        return honest(instance, patch)

    tests = Suite(failing)
    tests.releases = NEARER
    proof = prove(tests)
    assert proof.proven and proof.source["sdist"] == "b-0.9"
    assert [trial.failing for trial in proof.trials] == [-1, 0]
    tests.releases = BuildError("no index")
    said = []
    lost = asyncio.run(Prover(tests, None, 1, 60.0, say=said.append).prove(INSTANCE))
    assert lost.reason == "patch does not fit b-1.0" and not lost.is_verdict
    assert said == ["a__b-1: nearer releases cannot be looked for: no index"]


def test_what_cannot_be_made_is_said_and_a_sandbox_that_fails_says_nothing():
    proof = prove(Suite(lambda instance, patch: InstanceError("test_patch does not fit b-1.0")))
    assert not proof.proven and proof.reason == "test_patch does not fit b-1.0" and not proof.is_verdict
    tests = Suite(lambda instance, patch: GradeError("no space") if patch == NOOP_PATCH else honest(instance, patch))
    with pytest.raises(UntriedError, match="no space"):
        prove(tests)
    assert tests.graded == ["GOLD", NOOP_PATCH, NOOP_PATCH]  # once more
    gone = Suite(lambda instance, patch: SandboxError("no room") if patch else [])
    with pytest.raises(UntriedError, match="no room"):
        prove(gone)
    assert gone.graded == ["GOLD", "GOLD"]  # no environment is made for it


class InPlace(Suite):
    """Graded in the agent's own sandbox: a run asks an untouched one where an agent's gave no verdict."""

    def limits(self, instance): ...

    async def grade_in(self, instance, sandbox, timeout_s): ...


SAID = Grade(False, True)
HUNG, MUTE = replace(SAID, timed_out=True), replace(SAID, started=False, log="killed")


@pytest.mark.parametrize(
    ("kind", "without", "asked", "reason"),
    [
        (InPlace, [MUTE, SAID], 2, ""),  # a hiccup
        (InPlace, [MUTE, MUTE], 2, "without a solution its tests give no verdict: killed"),
        (InPlace, [HUNG, HUNG], 2, "without a solution its tests give no verdict: they did not end in time"),
        (Suite, [MUTE], 1, ""),  # its grader has seen them start
        (Suite, [HUNG], 1, ""),  # what is to be fixed may be an endless loop
    ],
)
def test_a_verdict_without_a_solution_is_needed_where_a_run_asks_for_it(kind, without, asked, reason):
    left = list(without)

    class Tests(kind):
        async def grade(self, instance, patch, sandboxes, timeout_s):
            grade = await super().grade(instance, patch, sandboxes, timeout_s)
            return left.pop(0) if patch == NOOP_PATCH else grade

    tests = Tests(honest)
    proof = prove(tests)
    assert (proof.proven, proof.reason) == (not reason, reason)
    assert tests.graded == ["GOLD", *[NOOP_PATCH] * asked]


def test_one_that_fails_does_not_end_the_others():
    def failing(instance, patch):
        return BuildError("no") if instance.instance_id == "bad" else honest(instance, patch)

    rows = [replace(INSTANCE, instance_id=name) for name in ("good", "bad", "fine")]
    results = {}
    prover = Prover(Suite(failing), None, 1, 60.0)
    asyncio.run(prove_all(prover, rows, lambda one, result: results.setdefault(one.instance_id, result.proven), 2))
    assert results == {"good": True, "bad": False, "fine": True}


def test_all_are_tried_before_one_is_mended():
    def failing(instance, patch):
        broken = instance.instance_id == "long" and instance.source.python != "3.7"
        return ["y"] if broken else honest(instance, patch)

    rows = [replace(INSTANCE, instance_id=name) for name in ("long", "b", "c")]
    tests, ended, lines = Suite(failing), [], []
    prover = Prover(tests, None, 1, 60.0, say=lines.append)
    asyncio.run(prove_all(prover, rows, lambda one, proof: ended.append((one.instance_id, proof.proven)), 1))
    assert ended == [("b", True), ("c", True), ("long", True)]
    assert [source.python for source in tests.built[:5]] == ["3.9"] * 5  # long once; b and c with both patches
    assert "long: gold fails (1 tests fail); tried again with" in lines[0]


def test_instances_of_one_release_do_not_wait_for_each_other_while_others_could_begin():
    rows = [
        replace(INSTANCE, instance_id=f"{release}{number}", source=replace(SOURCE, sdist=f"{release}-1.0"))
        for release in "ab"
        for number in range(3)
    ]
    assert [row.instance_id for row in spread_releases(rows)] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    others = [replace(INSTANCE, instance_id=name, source=None) for name in "xyz"]
    assert spread_releases(others) == others
    tests = Suite(honest)
    asyncio.run(prove_all(Prover(tests, None, 1, 60.0), rows, lambda row, proof: None, 1))
    assert [source.sdist for source in tests.built[::2]] == ["a-1.0", "b-1.0"] * 3


PROOF = Proof("a", True, "", "t", "m", "e", gold=("resolved",), noop="unresolved", took_s=1.5)


def test_a_book_can_be_read_elsewhere_and_the_last_line_counts(tmp_path):
    book = ProofBook(tmp_path / "proofs.jsonl")
    book.put(replace(PROOF, proven=False, reason="x"))
    book.put(PROOF)
    book.put(replace(PROOF, instance_id="b"))
    with (tmp_path / "proofs.jsonl").open("a") as file:
        file.write('{"instance_id": "c", "prov')
    (tmp_path / "copy.jsonl").write_bytes((tmp_path / "proofs.jsonl").read_bytes())
    assert read_proofs(tmp_path / "copy.jsonl") == {"a": PROOF, "b": replace(PROOF, instance_id="b")}
    assert str(tmp_path) not in (tmp_path / "copy.jsonl").read_text()
    assert read_proofs(tmp_path / "none.jsonl") == {}


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    record = INSTANCE.to_record() | {"eval_script": "true", "log_parser": "parse_log_pytest", "image": "i"}
    path.write_text("".join(json.dumps(record | {"instance_id": name}) + "\n" for name in ("p", "f", "n")))
    return path


def env_of(tmp_path, rows, sandbox=SandboxKind.process, **keys):
    return make_env(EnvConfig(name="jsonl", dataset=str(rows), eval_split="train", **keys), tmp_path / "cache", sandbox)


@pytest.fixture
def env(tmp_path, rows):
    """`p` is proven with another Python, `f` failed, `n` was never tried."""
    env = env_of(tmp_path, rows)
    book_of.cache_clear()
    for instance in env.chosen("train"):
        tests, made_of = env.digests(instance)
        known = replace(PROOF, instance_id=instance.instance_id, tests=tests, made_of=made_of)
        if instance.instance_id == "p":
            env.book.put(replace(known, source={**SOURCE.to_record(), "python": "3.7"}))
        if instance.instance_id == "f":
            env.book.put(replace(known, proven=False, reason="2 tests fail"))
    return env


def ids(env):
    return [one.instance_id for one in env.instances("train")]


def test_what_is_not_proven_is_left_out_by_name(env, tmp_path, rows):
    assert ids(env) == ["p"] and env.instances("train")[0].source.python == "3.7"
    assert env.left_out("train") == {"f": "2 tests fail", "n": "nobody tried its gold patch here"}
    assert env.split_instances("train") == 3 and [one.instance_id for one in env.untried("train")] == ["n"]
    kept = env_of(tmp_path, rows, unproven=Unproven.keep)
    assert ids(kept) == ["p", "f", "n"] and not kept.left_out("train")
    with pytest.raises(InstanceError, match=r"2 of 3 instances of train are not proven: f: 2 tests fail; n: nobody"):
        ids(env_of(tmp_path, rows, unproven=Unproven.refuse))


@pytest.mark.parametrize("weak_twins", [None, (), ("test_x",)])
def test_what_a_proof_says_of_twins_is_known_once_the_instance_is_used(env, monkeypatch, weak_twins):
    monkeypatch.setattr(twin_trial, "_KNOWN", {})
    env.book.put(replace(env.book.of("p"), weak_twins=weak_twins, twins_tried=weak_twins is not None))
    used = env.instances("train")[0]
    assert twin_trial.weak_tests(used) == frozenset(weak_twins or ())
    known = twin_trial._KNOWN.get("p")
    assert (known is not None and known.tried) is (weak_twins is not None)


def test_kept_all_the_same_one_that_cannot_be_made_fails_its_own_attempts_alone(env, tmp_path, rows):
    lost = replace(INSTANCE, source=Source(archive=str(tmp_path / "no.tar.gz"), python="3.9"))
    with pytest.raises(InstanceError, match="is no file of this machine"):
        env.workspace(lost)
    with pytest.raises(BuildError, match="is no file of this machine"):
        env_of(tmp_path, rows, unproven=Unproven.keep).workspace(lost)


def test_images_of_others_are_used_untried_and_a_proof_of_folders_says_nothing_of_them(env, tmp_path, rows):
    docker = env_of(tmp_path, rows, SandboxKind.docker)
    assert ids(docker) == ["p", "f", "n"]
    assert all(docker.standing(one)[0] is Standing.untried for one in docker.chosen("train"))
    with pytest.raises(InstanceError, match="3 of 3 instances of train are not proven"):
        ids(env_of(tmp_path, rows, SandboxKind.docker, unproven=Unproven.refuse))


def test_a_proof_of_another_row_of_other_tests_or_other_packages_says_nothing(env, tmp_path, rows, monkeypatch):
    text = rows.read_text()
    for old, new in (('"true"', '"false"'), ('["y"]', '["y", "z"]'), ('"3.9"', '"3.8"'), ("GOLD", "ANOTHER")):
        rows.write_text(text.replace(old, new))
        changed = env_of(tmp_path, rows)
        assert all(changed.standing(one)[0] is Standing.untried for one in changed.chosen("train")), old
    rows.write_text(text)
    monkeypatch.setattr(env, "environment_digest", lambda instance: "other")
    assert env.standing(env.chosen("train")[0]) == (
        Standing.untried,
        "its proof is of an environment with other packages than are here",
    )


def test_more_runs_may_be_asked_for_than_a_proof_has(env, tmp_path, rows):
    thorough = env_of(tmp_path, rows, proof_runs=3)
    assert thorough.standing(thorough.chosen("train")[0])[1] == "its gold patch was run 1 times, and env.proof_runs=3"


def test_where_nothing_is_left_the_way_out_is_said(tmp_path, rows):
    book_of.cache_clear()
    with pytest.raises(InstanceError, match=r"3 of 3 .* not proven.*job=validate proves.*env.unproven=keep"):
        ids(env_of(tmp_path, rows))
