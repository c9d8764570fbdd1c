"""Strength of tests: which wrong patches are made, what their grading says, and who is left out for weak tests."""

import asyncio
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.folder import patch_between
from swe_rl.env.make import make_env
from swe_rl.env.proof.record import Proof, ProofBook, Standing, book_of, read_proofs
from swe_rl.env.strength.measure import StrengthMeasure, UnmeasuredError
from swe_rl.env.strength.python_code import code_fingerprint, python_mutants
from swe_rl.env.strength.record import MutantTally, Strength, Survivor, WrongKind, summarize_strengths
from swe_rl.env.strength.siblings import read_siblings
from swe_rl.env.strength.wrong import Sides, code_paths, wrong_patches
from swe_rl.report.figures import strength_line, strength_tile
from swe_rl.run.strength import line_of, measure_here
from swe_rl.sandbox.sandbox import ExecResult, Workspace

BEFORE = '''def price(items, vip):
    """The sum of all items."""
    return sum(items)
'''
AFTER = '''def price(items, vip):
    """The sum of all items, less a discount if there are more than 3 and more."""
    # vip customers pay less and less
    total = sum(items)
    if vip and len(items) > 3:
        total = total - 5
    return total
'''
IMAGE = "diff --git a/logo.png b/logo.png\nnew file mode 100644\nindex 0000000..1234567\nBinary files differ\n"


def instance_of(before, after, patch=None):
    patch = patch_between(before, after) if patch is None else patch
    return Instance("a__b-1", "a/b", "c" * 40, "s", patch, "", ("t",), ())


INSTANCE = instance_of({"shop.py": BEFORE}, {"shop.py": AFTER})
FILES = {"shop.py": Sides(BEFORE, AFTER)}


def applied(patch, folder, files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=folder, check=True)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_mutant_is_other_code_than_the_right_one_and_than_the_one_before():
    texts = [variant.text for variant in python_mutants(AFTER, frozenset(range(2, 8)))]
    made = wrong_patches(INSTANCE, FILES, 100)
    whats = [patch.what for patch in made]
    assert len(texts) > len(made) > 10  # those in the docstring and in the comment were made, and dropped
    assert "shop.py:5: `and` is `or`" in whats and "shop.py:6: `-` is `+`" in whats and "shop.py:5: `3` is `4`" in whats
    assert "shop.py:1: the body of price is `return None`" in whats
    assert not any(what.startswith(("shop.py:2:", "shop.py:3:")) for what in whats)
    assert len({patch.patch for patch in made}) == len(made)


def test_texts_alone_are_no_difference_and_a_call_that_reports_is_no_loss():
    before, after = "def f(x):\n    return x\n", 'def f(x):\n    log.info("1 and 2")\n    return {"a and b": x}\n'
    made = wrong_patches(instance_of({"f.py": before}, {"f.py": after}), {"f.py": Sides(before, after)}, 100)
    assert {patch.what for patch in made} == {"f.py:1: the body of f is `return None`", "f.py:3: `return` gives None"}
    assert code_fingerprint("x = 'a'  # b\n") == code_fingerprint('x = "c"\n') != code_fingerprint("x = 1\n")
    assert code_fingerprint("def f(:\n") is None


def test_arguments_whose_order_is_nothing_are_not_exchanged():
    before, after = "def f(x, y):\n    return x\n", "def f(x, y):\n    return max(x, y) + power(x, y)\n"
    made = wrong_patches(instance_of({"f.py": before}, {"f.py": after}), {"f.py": Sides(before, after)}, 100)
    exchanged = [patch.change for patch in made if "exchanged" in patch.what]
    assert len(exchanged) == 1 and "max(x, y) + power(y, x)" in exchanged[0]


def test_one_wrong_patch_is_graded_once_whatever_it_is_called():
    before, after = "def f(x):\n    return x\n", "def f(x):\n    return x * 2\n"
    made = wrong_patches(instance_of({"f.py": before}, {"f.py": after}), {"f.py": Sides(before, after)}, 100)
    assert sorted(patch.what for patch in made) == [
        "f.py:1: the body of f is `return None`",
        "f.py:2: `*` is `//`",
        "f.py:2: `2` is `3`",
    ]


def test_each_wrong_patch_applies_and_the_parts_of_other_files_stay(tmp_path):
    """Also to lines with characters of several bytes, and beside files that are no text or no code."""
    before = {"shop.py": BEFORE, "README.md": "old\n", "tests/test_shop.py": "x = 1\n"}
    after = {
        "shop.py": AFTER.replace("vip and", '"é" and vip and'),
        "README.md": "new\n",
        "tests/test_shop.py": "x = 2\n",
    }
    patch = patch_between(before, after)
    instance = instance_of(before, after, patch)
    assert list(code_paths(patch + IMAGE)) == ["shop.py"]
    made = wrong_patches(instance, {"shop.py": Sides(BEFORE, after["shop.py"])}, 100)
    for number, wrong in enumerate(made):
        tree = applied(wrong.patch, tmp_path / str(number), before)
        assert {name: text for name, text in tree.items() if name != "shop.py"} == {
            name: text for name, text in after.items() if name != "shop.py"
        }
        assert code_fingerprint(tree["shop.py"]) not in (code_fingerprint(BEFORE), code_fingerprint(after["shop.py"]))
        assert applied(wrong.change, tmp_path / f"change{number}", after)["shop.py"] == tree["shop.py"]


def test_one_part_of_a_fix_is_left_out_where_it_has_several():
    before = "a = 1\nb = 1\nc = 1\nd = 1\n"
    after = before.replace("a = 1", "a = 2").replace("d = 1", "d = 2")
    made = wrong_patches(instance_of({"f.py": before}, {"f.py": after}), {"f.py": Sides(before, after)}, 100)
    assert [patch.what for patch in made if "left out" in patch.what and "1" in patch.what]
    one = before.replace("a = 1", "a = 2")
    made = wrong_patches(instance_of({"f.py": before}, {"f.py": one}), {"f.py": Sides(before, one)}, 100)
    assert not [patch for patch in made if "left out" in patch.what]  # that would be the code before the fix


def test_code_of_other_languages_is_made_wrong_by_its_operators():
    before, after = "f(x) { return 1; }\n", "// a == b\nf(x) { return x == 1 && y < 2; }\n"
    made = wrong_patches(instance_of({"f.js": before}, {"f.js": after}), {"f.js": Sides(before, after)}, 100)
    assert {patch.what for patch in made} == {
        "f.js:2: `==` is `!=`", "f.js:2: `&&` is `||`", "f.js:2: `<` is `<=`",
    }  # fmt: skip


def test_mutants_are_drawn_by_the_id_alone_and_as_many_as_asked_for():
    few = wrong_patches(INSTANCE, FILES, 3)
    assert few == wrong_patches(INSTANCE, FILES, 3) and len(few) == 4  # with the emptied function
    assert few != wrong_patches(replace(INSTANCE, instance_id="a__b-2"), FILES, 3)
    assert [patch.kind for patch in wrong_patches(INSTANCE, FILES, 0)] == [WrongKind.empty_function]


class Folder:
    """A sandbox that is a plain folder of the test, and counts a second of CPU for each command."""

    sandbox_id = "s"
    door_url = None

    def __init__(self, folder):
        self.folder, self.workdir, self.cpu_s = folder, str(folder), 0.0

    async def exec(self, command, *, timeout_s, env=None, max_output_bytes=None, waited=None):
        arguments = ["bash", "-c", command]
        process = await asyncio.create_subprocess_exec(*arguments, cwd=self.folder, stdout=-1, stderr=-2)
        output, _ = await process.communicate()
        self.cpu_s += 1.0
        return ExecResult(process.returncode, output.decode(), duration_s=7.0)

    async def write_file(self, path, content):
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)

    async def read_file(self, path):
        return (self.folder / path).read_bytes()

    async def close(self):
        pass


class Shop:
    """An environment and its sandboxes. `verdict(patch)`: True where its tests accept it, or an error."""

    def __init__(self, folder, verdict):
        self.folder, self.verdict, self.limits_s = folder, verdict, []
        folder.mkdir()
        (folder / "shop.py").write_text(BEFORE)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)

    def workspace(self, instance):
        return Workspace(path=self.folder)

    async def create(self, workspace, *, owner, door=None):
        return Folder(self.folder)

    async def grade(self, instance, patch, sandboxes, timeout_s):
        sandbox = await sandboxes.create(self.workspace(instance), owner="grade")
        await sandbox.exec("true", timeout_s=timeout_s)
        self.limits_s.append(timeout_s)
        verdict = self.verdict(patch)
        if isinstance(verdict, Exception):
            raise verdict
        if isinstance(verdict, Grade):
            return verdict
        return Grade(verdict, True, tests_s=4.0)


def measure(shop, budget_s=60.0, mutants=5, siblings=()):
    measuring = StrengthMeasure(shop, shop, mutants, budget_s, 600.0)
    return asyncio.run(measuring.measure(INSTANCE, siblings))


def test_tests_that_look_at_nothing_accept_everything_and_its_diffs_are_kept(tmp_path):
    strength = measure(Shop(tmp_path / "w", lambda patch: True))
    assert strength.false_pass_rate == 1.0 and strength.graded == 6 and strength.interval[0] > 0.5
    assert strength.by_kind == {"empty_function": MutantTally(1, 1), "mutant": MutantTally(5, 5)}
    assert all(survivor.change.startswith("diff --git a/shop.py") for survivor in strength.survivors)
    assert "accept" in line_of(strength) and "+    return None" in strength.survivors[0].change


def test_tests_that_know_the_right_code_reject_all_of_them_and_a_sibling(tmp_path):
    shop = Shop(tmp_path / "w", lambda patch: patch == INSTANCE.patch)
    strength = measure(shop, siblings=["an attempt that failed"])
    assert (strength.accepted, strength.graded) == (0, 7) and strength.by_kind["sibling"] == MutantTally(1, 0)
    assert strength.false_pass_rate == 0.0 and not strength.survivors and strength.made_at
    assert shop.limits_s[0] == 600.0 and max(shop.limits_s[1:]) == 30.0  # ten seconds, and five times the gold patch


def test_the_budget_cuts_it_off_and_says_what_was_not_tried(tmp_path):
    """The gold patch is not in it; two commands of a second are."""
    strength = measure(Shop(tmp_path / "w", lambda patch: patch == INSTANCE.patch), budget_s=2.0)
    assert (strength.graded, strength.not_tried, strength.cpu_s) == (2, 4, 2.0)
    assert "4 not tried, for the CPU time was spent (env.mutants_cpu_s)" in line_of(strength)


def test_what_takes_too_long_is_rejected_and_what_the_budget_cuts_off_is_not(tmp_path):
    late = Grade(False, True, timed_out=True)
    right = Grade(True, True, tests_s=4.0)
    strength = measure(Shop(tmp_path / "w", lambda patch: right if patch == INSTANCE.patch else late))
    assert (strength.graded, strength.accepted, strength.not_tried) == (6, 0, 0)
    strength = measure(Shop(tmp_path / "v", lambda patch: right if patch == INSTANCE.patch else late), budget_s=20.0)
    assert (strength.graded, strength.not_tried) == (0, 6) and strength.false_pass_rate is None
    assert strength.reason == "no wrong patch got a verdict"


def test_a_grading_that_fails_is_no_verdict(tmp_path):
    strength = measure(Shop(tmp_path / "w", lambda patch: patch == INSTANCE.patch or GradeError("no disk")))
    assert (strength.graded, strength.no_verdict) == (0, 6) and "6 got no verdict" in line_of(strength)
    unapplied = measure(Shop(tmp_path / "v", lambda patch: patch == INSTANCE.patch or Grade(False, False)))
    assert (unapplied.graded, unapplied.no_verdict) == (0, 6)


def test_nothing_is_said_where_the_right_code_fails(tmp_path):
    with pytest.raises(UnmeasuredError, match="its gold patch does not resolve it just now"):
        measure(Shop(tmp_path / "w", lambda patch: False))


STRENGTH = Strength(
    {"mutant": MutantTally(9, 3), "empty_function": MutantTally(1, 0)},
    (Survivor(WrongKind.mutant, "f.py:1: x", "diff"),),
    not_tried=2,
    cpu_s=3.5,
    made_at="2026-11-28T20:00:00Z",
)
PROOF = Proof("a", True, "", "t", "m", "", gold=("resolved",), noop="unresolved")


def test_a_proof_carries_it_with_rate_and_interval_and_one_without_is_as_before(tmp_path):
    book = ProofBook(tmp_path / "proofs.jsonl")
    book.put(replace(PROOF, strength=STRENGTH))
    book.put(replace(PROOF, instance_id="b"))
    first, second = map(json.loads, (tmp_path / "proofs.jsonl").read_text().splitlines())
    assert first["strength"]["false_pass_rate"] == 0.3 and 0.1 < first["strength"]["low"] < 0.3
    assert first["strength"]["survivors"] == [{"kind": "mutant", "what": "f.py:1: x", "change": "diff"}]
    assert "strength" not in second
    assert read_proofs(tmp_path / "proofs.jsonl")["a"].strength == STRENGTH


def test_all_instances_together_are_in_eval_json_the_page_and_the_terminal():
    weak, none = replace(STRENGTH, by_kind={"mutant": MutantTally(2, 2)}), Strength({}, reason="no code")
    summary = summarize_strengths({"a": STRENGTH, "b": weak, "c": none})
    assert summary["false_pass_rate"] == 5 / 12 and summary["num_instances"] == 2
    assert summary["instances"]["b"] == {"false_pass_rate": 1.0, "accepted": 2, "graded": 2}
    assert summary["low"] < 5 / 12 < summary["high"] and summarize_strengths({"c": none}) is None
    assert strength_tile(summary)[0]["value"] == "41.7 %" and "5 of 12 wrong patches of 2" in strength_line(summary)
    assert strength_tile({"false_pass_rate": "much"}) == [] and strength_line(None) is None


def env_of(tmp_path, **keys):
    keys = {"instances": str(tmp_path / "ids"), "eval_split": "train"} | keys
    (tmp_path / "ids").write_text("bugs__routes-001\nbugs__shelf-002\nbugs__queuebox-003\n")
    return make_env(EnvConfig(name="bugs", **keys), tmp_path / "cache" / "workspaces")


def measured(env, counts):
    book_of.cache_clear()
    for instance, (graded, accepted) in zip(env.chosen("train"), counts, strict=False):
        tests, made_of = env.digests(instance)
        strength = Strength({"mutant": MutantTally(graded, accepted)}, reason="" if graded else "no code")
        known = replace(PROOF, instance_id=instance.instance_id, tests=tests, made_of=made_of, strength=strength)
        env.book.put(known)


def test_weak_tests_are_left_out_by_name_and_so_is_what_nobody_measured(tmp_path):
    measured(env_of(tmp_path), [(10, 1), (10, 5)])
    assert len(env_of(tmp_path).instances("train")) == 3  # env.min_strength is 0
    env = env_of(tmp_path, min_strength=0.9)
    assert [one.instance_id for one in env.instances("train")] == ["bugs__routes-001"]
    assert env.left_out("train") == {
        "bugs__shelf-002": "its tests accept 5 of 10 wrong patches, and env.min_strength=0.9",
        "bugs__queuebox-003": "the strength of its tests was not measured (job=validate)",
    }
    assert list(env.strengths("train")) == ["bugs__routes-001"]
    with pytest.raises(InstanceError, match=r"3 of 3 instances of train .*their tests are too weak.*min_strength=0 "):
        env_of(tmp_path, min_strength=0.95).instances("train")


def test_tests_that_changed_since_were_not_measured(tmp_path, monkeypatch):
    measured(env_of(tmp_path), [(10, 0)])
    env = env_of(tmp_path, min_strength=0.5)
    assert len(env.instances("train")) == 1
    monkeypatch.setattr(BugsEnv, "digests", lambda self, instance: ("other tests", "m"))
    with pytest.raises(InstanceError, match="was not measured"):
        env_of(tmp_path, min_strength=0.5).instances("train")


def test_check_refuses_what_the_start_would_refuse_and_reads_the_same_file(tmp_path):
    env = env_of(tmp_path, min_strength=0.5)
    book_of.cache_clear()
    config = compose(["env.min_strength=0.5", f"paths.cache={tmp_path / 'cache'}"]).config

    def is_refused():
        return "strength" in {finding.rule_id for finding in check_config(config, host=Host())}

    assert is_refused()
    with pytest.raises(InstanceError):
        env.instances("train")
    measured(env, [(10, 0)])
    assert not is_refused() and len(env_of(tmp_path, min_strength=0.5).instances("train")) == 1


def test_patches_of_attempts_that_failed_are_found_in_the_folders_of_runs(tmp_path):
    folder = tmp_path / "run" / "trajectories"
    folder.mkdir(parents=True)
    attempt = {"trajectory_id": "t", "instance_id": "a", "status": "unresolved", "patch": "one"}
    lines = [attempt, attempt, attempt | {"patch": "two"}, attempt | {"status": "resolved", "patch": "right"}]
    lines += [attempt | {"patch": " "}, attempt | {"instance_id": 3}, [attempt], attempt | {"patch": None}]
    (folder / "step_000001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    (folder / "folder.jsonl").mkdir()
    (folder / "deep.jsonl").write_text("[" * 100_000)
    assert read_siblings(tmp_path) == {"a": ["one", "two"]}
    with pytest.raises(InstanceError, match="holds no attempt of an earlier run"):
        read_siblings(tmp_path / "run" / "trajectories" / "folder.jsonl")


def test_embedded_rows_of_a_file_are_measured_like_those_of_the_package(tmp_path):
    """A proof is needed to keep it: what has none is tried first."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(env_of(tmp_path).chosen("train")[0].to_record()) + "\n")
    env = make_env(EnvConfig(name="jsonl", dataset=str(rows), eval_split="train"), Path(tmp_path / "cache"))
    book_of.cache_clear()
    (instance,) = env.chosen("train")
    assert not env.is_tried(instance)
    measured(env, [(4, 1)])
    assert env.is_tried(instance) and env.strength(instance).accepted == 1


def test_a_row_that_names_no_tests_is_measured_by_those_of_its_proof(tmp_path, monkeypatch):
    """Without any test each wrong patch is accepted: what said so before is measured again."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "shop.py").write_text(BEFORE)
    row = {"instance_id": "o__shop-1", "repo": "o/shop", "base_commit": "0" * 40, "problem_statement": "Too dear."}
    row |= {"patch": INSTANCE.patch, "test_patch": "", "source": {"tree": str(tree), "python": "3.11"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    choices = ["env=jsonl", f"env.dataset={tmp_path}/rows.jsonl", "env.eval_split=train", f"paths.scratch={tmp_path}"]
    config = compose(choices).config
    env = make_env(config.env, tmp_path / "cache")
    (instance,) = env.chosen("train")
    assert instance.is_unmeasured
    tests, made_of = env.digests(instance)
    accepted = Strength({"mutant": MutantTally(4, 4)})
    lists = {"fail_to_pass": ("test_shop.py::test_sum",), "pass_to_pass": ("test_shop.py::test_none",)}
    book_of.cache_clear()
    env.book.put(replace(PROOF, instance_id="o__shop-1", tests=tests, made_of=made_of, strength=accepted, **lists))
    monkeypatch.setattr(type(env), "standing", lambda self, instance: (Standing.proven, ""))
    seen = []

    async def measured_with(self, instance, siblings=()):
        seen.append((instance.fail_to_pass, instance.pass_to_pass))
        return Strength({"mutant": MutantTally(4, 0)})

    monkeypatch.setattr(StrengthMeasure, "measure", measured_with)
    said = asyncio.run(measure_here(config, env, [instance], tmp_path, lambda line: None))
    assert seen == [tuple(lists.values())] and said["o__shop-1"].accepted == 0
