"""`job=check job.of=J X` refuses exactly what `job=J X` refuses before it starts anything.

Both commands are typed as a user types them; what would start a run is replaced, so that reaching it counts as a start.
"""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from swe_rl.check import check as rules
from swe_rl.cli import dispatch, launch
from swe_rl.config.choices import JobName
from swe_rl.config.folders import list_options

ROOT = Path(__file__).parents[2]
STARTED = [JobName.train, JobName.rollout, JobName.eval, JobName.sft, JobName.serve, JobName.runtime]
ANSWERED = [JobName.prepare, JobName.images, JobName.export, JobName.simulate]
EXPERIMENTS = [f"+experiment={option.name}" for option in list_options()["experiment"]]
SWEEPS = [f"+sweep={option.name}" for option in list_options()["sweep"]]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "launchers").rglob("*.*") if path.suffix != ".pyc"),
]
ASSUMED = "assumed hardware="
# What these say follows from the cores, GPUs and files of the machine that is there or assumed.
OF_THIS_MACHINE = {"sandbox_slots", "sandbox_places", "idle_gpus", "model_path", "image_disk"}
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*python -m swe_rl ?(.*)$")
_FINDING = re.compile(r"^(?:job [\d, ]+: )?(error|warning) \[(\w+)\] ([\w./]+)", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Command lines of a page that can be typed as they are: nothing to be filled in, nothing for the shell to do."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [found.group(1).partition(" #")[0] for line in text.splitlines() if (found := _COMMAND.match(line))]
    return [line.strip() for line in lines if not re.search(r"[$|;<>&]|\.\.\.|[A-Z]{4,}|^-c|--help|--cfg", line)]


TYPED = sorted({line for page in PAGES for line in commands(page)})


@pytest.fixture
def verdict(monkeypatch, capsys, tmp_path):
    """verdict(words): exit status, and the rules that refused by the key that they named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "key-of-a-test")
    host = rules._make_host  # with every package: a check for another machine does not ask for those of this one
    monkeypatch.setattr(rules, "_make_host", lambda origins: dataclasses.replace(host(origins), version=lambda _: ""))
    for name in ("run_jobs", "run_trials", "_run_frozen", "_submit_jobs"):
        monkeypatch.setattr(launch, name, lambda *_: 0)
    answer = dispatch._run_question

    def stopped(composed):
        return 0 if composed.config.job.name in ANSWERED else answer(composed)

    monkeypatch.setattr(dispatch, "_run_question", stopped)

    def typed(words):
        status = launch.run_command(words)
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        text = said.out + said.err
        return status, findings_in(text, "error"), text

    return typed


def findings_in(text, severity):
    return sorted({(rule, key) for said, rule, key in _FINDING.findall(text) if said == severity})


def differences(verdict, words, job):
    """Empty where check and start agree.

    Where a check assumes a machine, this one has too few GPUs for the start. What the assumed machine may have, for
    example the folder of a model, the check warns of, and the start misses. Nothing else is said differently.
    """
    plain = [word for word in words if not re.match(r"\+{0,2}job(\.of)?=", word)]
    started = verdict([*plain, f"job={job}"])
    checked = verdict([*plain, "job=check", f"job.of={job}"])
    agreed = checked[:2]
    if ASSUMED in checked[2]:
        missed = set(findings_in(checked[2], "warning")).intersection(started[1])
        agreed = (2, sorted({*checked[1], *missed, ("gpus", "layout.name")}))
    return [] if started[:2] == agreed else [(shlex.join(plain), job, started, checked)]


@pytest.mark.parametrize("words", EXPERIMENTS[::4])
def test_of_a_set_up(verdict, words):
    assert differences(verdict, [words], JobName.train) == []


@pytest.mark.slow
@pytest.mark.parametrize("job", STARTED + ANSWERED)
def test_of_every_job_and_some_of_the_set_ups(verdict, job):
    """Each set-up with one job; all pairs take minutes, in the lane `long`."""
    jobs = STARTED + ANSWERED
    set_ups = (EXPERIMENTS + SWEEPS)[jobs.index(job) :: len(jobs)]
    assert [found for words in set_ups for found in differences(verdict, [words], job)] == []


@pytest.mark.long
@pytest.mark.parametrize("job", STARTED + ANSWERED)
def test_of_every_set_up_and_job(verdict, job):
    assert [found for words in EXPERIMENTS + SWEEPS for found in differences(verdict, [words], job)] == []


@pytest.mark.slow
def test_of_what_the_pages_print(verdict):
    """The pages' own job where they name it."""
    assert len(TYPED) > 40
    found = []
    for line in TYPED:
        words = shlex.split(line)
        named = next((word.partition("=")[2] for word in words if re.match(r"job=\w+$", word)), "train")
        if named in {*STARTED, *ANSWERED}:
            found += differences(verdict, words, named)
    assert found == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_pages_print_is_not_warned_of(verdict):
    """A command that is to be typed works as it is printed. If it is warned of, its page names the rule."""
    found = []
    for page in PAGES:
        told = page.read_text(encoding="utf-8")
        for line in commands(page):
            words = shlex.split(line)
            job = job_of(words)
            if job not in {*STARTED, *ANSWERED} or re.search(r"\+(experiment|sweep)=", line):
                continue  # a published set-up is as it was published
            plain = [word for word in words if not re.match(r"\+{0,2}job(\.of)?=|(check|plan)$", word)]
            _, _, text = verdict([*plain, "job=check", f"job.of={job}"])
            warned = {rule for rule, _ in findings_in(text, "warning")} - OF_THIS_MACHINE
            warned = {rule for rule in warned if not rule.startswith("preflight_")}
            found += [(page.name, line, rule) for rule in warned if rule not in told]
    assert found == [], "\n".join(map(str, found))


def job_of(words):
    """The job that a command starts, or that it asks about."""
    named = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    job = named.get("job", next((word for word in words if word in ("check", "plan")), "train"))
    return named.get("job.of", "train") if job in ("check", "plan") else job


@pytest.mark.parametrize(
    "line",
    [
        "hydra/launcher=submitit_slurm",
        "--multirun hydra/launcher=submitit_slurm layout=dp4 model=qwen3_14b",
        "--multirun hydra/launcher=submitit_slurm layout=dp4 model=qwen3_14b hardware=h100x8 hardware.partition=gpu",
        "--multirun hydra/launcher=submitit_slurm trainer.seed=0,1",
        "--multirun job.detach=true trainer.seed=0,1",
        "job.detach=true",
        "model=qwen3_14b layout=dp4 hardware=h100x8",
        "layout=dp4 hardware=h100x8 hardware.nodes=2 layout.engines=12 paths.outputs=/tmp/outputs",
        "engine=external",
        "rollout.n=1",
        "trainer.steps=-1",
        "agent=gold",
        "logger=wandb",
        "router=nonsense",
        "hydra.launcher.partition=a",
        "layout=local2 layout.sequence_parallel=4 sft.device=cuda sft.start=/nowhere",
        "layout=local2 trainer.lora_rank=8 trainer.resume=outputs/none hardware.ray_address=wrong:address",
        "layout=colocated8 model=qwen3_14b hardware=h100x8 trainer.attention=nonsense layout.expert_parallel=2",
        "env=mix",
        "env=mix +env@env.mix.bugs=bugs rollout=default env.mix.bugs.weight=0",
        "env=mix +env@env.mix.bugs=bugs +env@env.mix.gym=swe_gym sandbox=process",
        "env=mix +env@env.mix.bugs=bugs rollout=default +rollout.schedule.max_turns={1:9}",
    ],
)
@pytest.mark.parametrize("job", ["train", *(pytest.param(job, marks=pytest.mark.slow) for job in ("serve", "sft"))])
def test_of_what_somebody_may_type(verdict, line, job):
    assert differences(verdict, line.split(), job) == []
