"""README and docs/ say what is there: commands, tables, links, keys; and no tracked file tells of one machine."""

import ast
import dataclasses
import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from swe_rl.agent.agent import Exit, Turn
from swe_rl.config.choices import JobName, OutcomeReward, RewardKind
from swe_rl.config.compose import compose
from swe_rl.config.folders import list_options
from swe_rl.config.keys import is_legal
from swe_rl.config.schema import Config
from swe_rl.config.secrets import is_secret_key
from swe_rl.config.spelling.foreign_keys import NEAR, SAME
from swe_rl.env.env import Grade
from swe_rl.rollout.batch import rollout_numbers
from swe_rl.rollout.collect import Collected
from swe_rl.rollout.outcome import FAILURE_REWARD, reward_of, status_of
from swe_rl.rollout.pass_rates import PassRates
from swe_rl.rollout.rows import Mismatch
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.run.stream import token_staleness
from swe_rl.trainer.trainer import TrainMetrics

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
JOBS = ROOT / "docs" / "jobs.md"
OF_THE_ROOT = ("CONTRIBUTING.md", "RELEASING.md", "CHANGELOG.md")
PAGES = [README, *(ROOT / name for name in OF_THE_ROOT), *sorted((ROOT / "docs").rglob("*.md"))]
GROUPS = {field.name for field in dataclasses.fields(Config) if field.name != "name"}
FILE_ENDINGS = ("json", "jsonl", "yaml", "html", "safetensors", "py", "md", "svg")
ABSENT = "°"  # composes, but cannot run yet
MADE_OF_CODE = ("keys", "rules", "foreign_keys", "api", "published")
LARGEST_TEXT_BYTES = 2_000_000
MOST_WORDS = 1_500  # of a page; those of the part Reference are looked up, and may be longer
# These are looked up, too: where something is changed, figures, faults and fields of protocols.
LOOKED_UP = {"architecture.md", "engineering/benchmarks.md", "engineering/faults.md", "engineering/dialects.md"}
MOST_WORDS_IN_ALL = 80_000
MOST_WORDS_FOR_USERS = 36_000
MOST_PAGES_FOR_USERS = 30  # beside those that are made of other files
MOST_LINES_OF_README = 90


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def readme_command(name):
    found = re.search(rf"^<!-- command: {name} -->\n```bash\n(.+)\n```$", README.read_text(), re.MULTILINE)
    assert found, f"README has no command {name}"
    return found[1]


def rows(title, text):
    """The cells of the table whose header line starts with `| title |`."""
    return tables(title, text)[0]


def tables(title, text):
    """All of them, in the order of the page."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith(f"| {title} |")]
    bodies = [itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :]) for start in starts]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in body] for body in bodies]


def code(text):
    """What is written as code: fences, indented lines, spans."""
    fences = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}\S.*$", prose, re.MULTILINE)
    return [*fences, *indented, *re.findall(r"`([^`\n]+)`", prose)]


def keys_in(text):
    pattern = rf"(?<![\w./-])(?:{'|'.join(sorted(GROUPS))})(?:\.[a-z_]\w*)+(?![\w/(*])"
    found = {key for part in code(text) for key in re.findall(pattern, part)}
    return {key for key in found if key.rsplit(".", 1)[-1] not in FILE_ENDINGS}


def tracked():
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    files = [ROOT / name for name in done.stdout.split("\0") if name]
    if not files:
        pytest.skip("not a git checkout")
    return [path for path in files if path.is_file() and path.stat().st_size < LARGEST_TEXT_BYTES]


def test_there_are_exactly_two_commands_of_one_line():
    assert re.findall(r"^```(\w*)$", README.read_text(), re.MULTILINE).count("bash") == 2
    assert "\n" not in readme_command("train") + readme_command("test")


@pytest.mark.parametrize(
    ("name", "options", "extra", "ends_with"),
    [("train", "", "cpu", "-m swe_rl"), ("test", "-c constraints.txt ", "test", "-m pytest -n 3")],
)
def test_a_command_installs_an_extra_that_exists(name, options, extra, ends_with):
    """Without pinned versions a release of somebody else can make pip search for hours in what the tests need."""
    command = readme_command(name)
    assert command.startswith(f"python3 -m venv .venv && .venv/bin/pip install {options}-e '.[{extra}]' && ")
    assert command.endswith(ends_with)
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_ci_runs_the_readmes_command():
    script = f"cd '{ROOT}' && source .ci/run && readme_command test"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == readme_command("test")


def test_ci_fails_when_the_tests_fail(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    for status, closing in ((0, "3 passed in 1.25s"), (1, "1 failed, 2 passed in 61.50s (0:01:01)")):
        command = f"echo '{closing}' && exit {status}"
        (tmp_path / "README.md").write_text(f"<!-- command: test -->\n```bash\n{command}\n```\n")
        script = f"cd '{tmp_path}' && source .ci/run && tests"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (status, closing)


def test_the_cpu_extra_names_one_torch():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [torch] = [need for need in extras["cpu"] if need.startswith("torch")]
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", torch)


def test_the_jobs_are_those_of_the_schema():
    found = {cells[0].strip("`") for cells in rows("job", JOBS.read_text())}
    assert found == set(JobName) == {option.name for option in list_options()["job"]}


def test_the_groups_are_those_of_conf():
    text = JOBS.read_text()
    found = {
        cells[0].strip("`"): {name.strip(f"* {ABSENT}") for name in cells[1].split(",")}
        for cells in rows("group", text)
    }
    there = {group: {option.name for option in members} for group, members in list_options().items() if group != "job"}
    assert found == there


def test_the_bold_option_is_the_default():
    bold = {
        cells[0].strip("`"): match[1]
        for cells in rows("group", JOBS.read_text())
        if (match := re.search(r"\*\*(\w+)\*\*", cells[1]))
    }
    choices = compose().choices
    groups = [group for group in list_options() if group in choices and group not in ("job", "hydra/launcher")]
    assert bold == {group: choices[group] for group in groups}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_resolve(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def pages_of(nav):
    """Of a list of mkdocs.yml, the parts in it included."""
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def parts_of_the_site():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return {part: list(pages_of(pages)) for entry in nav for part, pages in entry.items() if isinstance(pages, list)}


def words(page):
    return len(re.findall(r"\S*\w\S*", page.read_text()))


def test_each_page_is_in_one_part_of_the_site():
    pages = [page for part in parts_of_the_site().values() for page in part]
    made = {"contributing.md", "changes.md", *(f"reference/{page}.md" for page in MADE_OF_CODE)}  # by docs/site.py
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages) == sorted(there | made)


def test_the_front_page_is_read_in_a_minute():
    text = README.read_text()
    assert len(text.splitlines()) <= MOST_LINES_OF_README
    assert len(re.findall(r"(?<!!)\[[^\]]*\]\([^)]+\)", text)) <= 10 and text.count("![") == 2
    assert (ROOT / "docs" / "viewer.png").stat().st_size < 150_000


def test_one_person_can_keep_the_pages():
    """A new page takes the place of another, or of words that are said twice. Raise the bounds with a reason."""
    pages = {str(path.relative_to(ROOT / "docs")): words(path) for path in (ROOT / "docs").rglob("*.md")}
    engineering = parts_of_the_site()["Engineering"]
    assert sum(pages.values()) <= MOST_WORDS_IN_ALL
    of_users = [number for page, number in pages.items() if page not in engineering]
    assert sum(of_users) <= MOST_WORDS_FOR_USERS and len(of_users) <= MOST_PAGES_FOR_USERS


def test_no_tutorial_leads_to_how_swe_rl_is_made():
    parts = parts_of_the_site()
    found = []
    for page in parts["Tutorials"]:
        for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / "docs" / page).read_text()):
            if target in parts["Engineering"]:
                found.append(f"{page}: {target}")
    assert found == []


def test_pages_that_code_and_messages_name_exist():
    named = {}
    for path in tracked():
        if path.suffix in (".py", ".yaml", ".toml", ".txt", ".sh", ".json") and "packages" not in path.parts:
            for page in re.findall(
                r"(?<![\w/])docs/[\w/]+\.(?:md|ipynb)", path.read_text(encoding="utf-8", errors="replace")
            ):
                named.setdefault(page, path)
    assert len(named) > 15
    assert {page: str(path) for page, path in named.items() if not (ROOT / page).is_file()} == {}


def test_no_page_is_long_but_those_of_the_reference():
    pages = [page for part, members in parts_of_the_site().items() if part != "Reference" for page in members]
    pages = [page for page in pages if page not in LOOKED_UP]
    long = {page: words(path) for page in pages if (path := ROOT / "docs" / page).is_file()}
    assert {page: number for page, number in long.items() if number > MOST_WORDS} == {}


def test_each_measurement_has_a_date():
    undated = []
    page = (ROOT / "docs" / "engineering" / "benchmarks.md").read_text()
    for cells in itertools.chain.from_iterable(tables("what", page)):
        if not re.fullmatch(r"2026-\d\d-\d\d(?:[,;] \d\d)?", cells[-1]):
            undated.append(cells[0])
    assert len(tables("what", page)) >= 5 and undated == []


def texts_of_the_program():
    """Every text in the code as it is printed, what is filled in left out."""
    for path in (ROOT / "swe_rl").rglob("*.py"):
        if "packages" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    yield "\0".join(part.value for part in node.values if isinstance(part, ast.Constant))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_the_messages_that_a_page_explains_are_those_of_the_program():
    page = (ROOT / "docs" / "messages.md").read_text()
    messages = re.findall(r"^\| `(.+?)` \| .+ \| .+ \|$", page, re.MULTILINE)
    said = "\0".join(texts_of_the_program())
    assert len(messages) > 20 and [message for message in messages if message not in said] == []


def keys_of_steps():
    """Those of a line of steps.jsonl that functions of their own give; `run/loop.py` adds a few by name."""
    yield from (field.name for field in dataclasses.fields(TrainMetrics))
    yield from rollout_numbers(Collected([], [], []), 1.0)
    yield from PassRates(1, 1.0).observe([])
    yield from Mismatch().rates()
    yield from token_staleness([], 0)
    loop = (ROOT / "swe_rl" / "run" / "loop.py").read_text()
    yield from re.findall(r'record\["(\w+)"\] =', loop)


def section_of_run_folder(title):
    _, found, rest = (ROOT / "docs" / "run_folder.md").read_text().partition(f"\n## {title}\n")
    assert found
    return re.split(r"^## ", rest, flags=re.MULTILINE)[0]


def first_cells(section):
    """What they name."""
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def test_each_key_of_steps_jsonl_is_explained():
    explained, keys = first_cells(section_of_run_folder("`steps.jsonl`")), set(keys_of_steps())
    assert len(keys) > 60 and {"loss", "resampled_groups", "foreseen_groups"} < keys
    assert sorted(keys - explained) == []


def test_each_key_of_a_trajectory_is_named():
    named = set(re.findall(r"`(\w+)`", section_of_run_folder("A trajectory")))
    assert {field.name for kind in (Trajectory, Turn) for field in dataclasses.fields(kind)} - named == set()


def test_each_event_is_explained():
    code = "".join(path.read_text() for path in (ROOT / "swe_rl").rglob("*.py") if "packages" not in path.parts)
    events = set(re.findall(r'(?:events\.write|\brecord)\(\s*"(\w+)"', code))
    assert {"went_back", "engine_lost", "trainer_restart", "runtime_ends"} < events
    assert events - first_cells(section_of_run_folder("`events.jsonl`")) == set()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_keys_exist(page):
    unknown = sorted(key for key in keys_in(page.read_text()) - SAME.keys() - NEAR.keys() if not is_legal(key))
    assert not unknown


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_no_command_follows_a_list_at_once(page):
    """Four spaces behind a list make a paragraph of its last item: a sentence has to stand between."""
    prose = re.sub(r"^```\w*\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(?:[-*]|\d+\.) .*\n(?:  +\S.*\n)*\n    (?![-*] |\d+\. )\S.*", prose, re.MULTILINE) == []


def test_a_key_that_is_not_there_would_be_found():
    assert keys_in("Say `rollout.m=3` or\n\n    python -m swe_rl trainer.stepz=2\n") == {"rollout.m", "trainer.stepz"}
    assert not is_legal("rollout.m")
    assert keys_in("`swe_rl/rollout/rows.py`, `model.safetensors`, `trainer.steps`") == {"trainer.steps"}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_files_that_are_named_exist(page):
    for part in re.findall(r"`((?:swe_rl|conf|tests|docs|sweeps|\.ci)/[^`\s]*)`", page.read_text()):
        if not re.search(r"[A-Z]{3,}", part):  # conf/GROUP/NAME.yaml
            assert list(ROOT.glob(part.partition("::")[0].rstrip("/"))), part


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_modules_that_commands_start_exist(page):
    modules = set(re.findall(r"python -m ((?:bench|tests)[\w.]*)", page.read_text()))
    assert [module for module in sorted(modules) if not (ROOT / f"{module.replace('.', '/')}.py").is_file()] == []


def test_the_page_of_the_trainer_names_files_of_the_trainer():
    parts = re.findall(r"`((?!swe_rl/|tests/)[a-z_/]+\.py)`", (ROOT / "docs" / "training.md").read_text())
    assert len(parts) > 8 and [part for part in parts if not list((ROOT / "swe_rl" / "trainer").rglob(part))] == []


def test_the_failure_table_is_the_default_configuration():
    words = {True: "yes", False: "no"}
    outcomes = compose().config.rollout.outcomes
    unsubmitted = {status_of(exit, "a change", None).value for exit in Exit if exit is not Exit.SUBMITTED}
    graded = [status for status, row in outcomes.items() if row.reward is OutcomeReward.graded]
    rewards = {status: row.reward.value for status, row in outcomes.items()}
    rewards |= {status: "graded if submitted, else failure" for status in graded if status in unsubmitted}
    half = Grade(resolved=False, patch_applied=True, fail_to_pass={"a": True, "b": False}, pass_to_pass={})
    kind = RewardKind.fail_to_pass_fraction
    assert {reward_of(Status(status), half, outcomes, kind) for status in graded if status != "resolved"} == {0.5}
    assert {reward_of(Status(status), None, outcomes, kind) for status in graded} == {FAILURE_REWARD[kind]}
    infra_retries = compose().config.rollout.infra_retries
    found = {}
    page = (ROOT / "docs" / "engineering" / "failure_policy.md").read_text()
    for status, _, reward, trained, in_baseline, retries in rows("status", page):
        number = infra_retries if retries == "`rollout.infra_retries`" else int(retries)
        found[status.strip("`")] = (reward, trained, in_baseline, number)
    assert found == {
        status: (rewards[status], words[row.trained], words[row.in_baseline], row.retries)
        for status, row in outcomes.items()
    }
    assert set(found) == set(Status)


def test_the_whole_package_that_a_page_shows_is_what_is_written():
    written = "\n".join(path.read_text() for path in (ROOT / "examples" / "package").rglob("*.*") if path.is_file())
    page = (ROOT / "docs" / "extending.md").read_text()
    shown = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2 and [block for block in shown if block not in written] == []


def test_secret_keys_are_as_described():
    for ending in ("api_key", "key", "token", "secret", "password", "credentials"):
        assert is_secret_key(f"group.{ending}")


def test_no_file_tells_of_a_machine():
    homes = re.compile(
        r"(?<![\w.*])/(?:home/(?!me\b)|Users/|work/|mnt/|opt/wheels|root/)[\w-]+"
    )  # /home/me is nobody's
    registries = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|(?:extra-)?index-url|find-links", re.I)
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" in content or path == Path(__file__):
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
            if homes.search(line) or registries.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_tests_that_pages_name_exist():
    """A claim of docs/security.md is as good as the test that attacks it."""
    for page in PAGES:
        for file, function in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE), (page, function)
    assert (ROOT / "docs" / "security.md").read_text().count("::test_") >= 15


def test_every_fault_has_a_test_that_injects_it():
    """In the order of their numbers; each says what happens, and tests/faults.yaml names tests that exist."""
    places = tables("number", (ROOT / "docs" / "engineering" / "faults.md").read_text())
    of_tests = yaml.safe_load((ROOT / "tests" / "faults.yaml").read_text())
    faults = [cells for table in places for cells in table]
    assert [int(cells[0]) for cells in faults] == list(of_tests) == list(range(1, 46))
    assert len(places) > 5 and all(fault and happens for _, fault, happens in faults)
    for number, named in of_tests.items():
        assert named, number
        for file, _, function in (name.partition("::") for name in named):
            assert (ROOT / file).is_file(), (number, file)
            assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE), (
                number,
                function,
            )


def test_the_architecture_page_names_every_package_and_only_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    packages = {path.parent.name for path in (ROOT / "swe_rl").glob("*/__init__.py")}
    rooms = text.partition("## The rooms")[2].partition("\n## ")[0]
    assert packages <= set(re.findall(r"`(\w+)`", rooms))
    parts = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)
    below = (ROOT / "swe_rl", ROOT, *(path.parent for path in (ROOT / "swe_rl").glob("*/__init__.py")))
    assert len(parts) > 60
    assert [part for part in parts if not any((folder / part).exists() for folder in below)] == []


@pytest.mark.parametrize(
    "walk", ["A step of training", "An evaluation", "A turn through the gateway", "A check", "A grading"]
)
def test_a_walk_has_ten_stops_at_most(walk):
    text = (ROOT / "docs/architecture.md").read_text()
    stops = re.findall(r"^(\d+)\. ", text.partition(f"\n## {walk}\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert stops == [str(number) for number in range(1, len(stops) + 1)] and 1 < len(stops) <= 10
