"""`.ci/run`: what a failure, a second look and a lane that cannot be started make of its table and its exit status."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = """<!-- command: test -->
```bash
.venv/bin/python -m pytest -q {more}
```
"""
ONCE = """
from pathlib import Path
def test_once():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("busy")
"""
SECOND_ONLY = """
from pathlib import Path
def test_second_only():
    with Path(__file__).with_name("runs").open("a+") as runs:
        runs.write("x")
        runs.seek(0)
        assert len(runs.read()) == 2
"""
ALWAYS = "def test_always():\n    raise AssertionError('wrong')\n"
LANES = f"""
import pytest
{ONCE.replace("def ", "@pytest.mark.vllm" + chr(10) + "def ")}
@pytest.mark.slow
def test_slow():
    pass
@pytest.mark.slurm
{ALWAYS}
@pytest.mark.vllm
@pytest.mark.long
def test_long():
    raise AssertionError("nobody asked for it")
@pytest.mark.gpu
def test_gpu():
    pytest.skip("no GPU")
"""
MANY = "".join(f"def test_{n}():\n    raise AssertionError('wrong')\n" for n in range(6))


@pytest.fixture
def project(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text(encoding="utf-8"), encoding="utf-8")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # Two workers take seconds to come and go: `-n 2` is said, and `-n 0` is done.
    python.write_text(f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "${{@/#2/0}}"\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n slurm\n vllm\n gpu\n long\n", encoding="utf-8")
    (tmp_path / "README.md").write_text(README.format(more=""), encoding="utf-8")
    return tmp_path


def run_tests(project, body, what="tests"):
    (project / "test_it.py").write_text(body, encoding="utf-8")
    script = f"cd '{project}' && source .ci/run && {what}"
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # the others take seconds
    environment = {**os.environ, **plugins}
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, env=environment)


def test_who_passes_twice_alone_is_accepted_and_named(project):
    done = run_tests(project, ONCE, 'tests && echo "${ROWS[*]}"')
    assert done.returncode == 0, done.stdout + done.stderr
    assert "twice more alone: test_it.py::test_once" in done.stdout
    assert "1 of 1 passed alone only, to be mended: test_it.py::test_once" in done.stdout


def test_who_fails_the_second_time_alone_fails_the_lane(project):
    done = run_tests(project, SECOND_ONLY)
    assert done.returncode == 1, done.stdout + done.stderr


def test_failed_twice_fails(project):
    done = run_tests(project, ONCE + ALWAYS)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


def test_many_failures_are_no_accident(project):
    done = run_tests(project, MANY)
    assert done.returncode == 1
    assert "twice more alone" not in done.stdout


def test_what_passes_is_not_run_again(project):
    done = run_tests(project, "def test_right():\n    pass\n")
    assert done.returncode == 0
    assert "twice more alone" not in done.stdout


NOTHING_INSTALLED = """
environment() { :; }
install_node_agents() { :; }
install_python_agents() { :; }
lane_lacks() { if [[ $1 == docker ]]; then echo 'no engine'; fi; }
"""


def table(done):
    """The closing table by its first column, the seconds left out."""
    rows = [line.split() for line in done.stdout.partition("== result\n")[2].splitlines()[1:]]
    return {cells[0]: (*cells[1:4], " ".join(cells[5:])) for cells in rows if cells[0] != "install"}


def test_a_failing_lane_fails_the_run_and_the_lanes_after_it_run(project):
    done = run_tests(project, LANES, f"{NOTHING_INSTALLED} main slow slurm docker vllm gpu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert table(done) == {
        "slow": ("1", "0", "0", ""),
        "slurm": ("0", "1", "0", "0 of 1 passed alone only, to be mended: test_it.py::test_always"),
        "docker": ("-", "-", "-", "skipped: no engine"),
        "vllm": ("1", "0", "0", "1 of 1 passed alone only, to be mended: test_it.py::test_once"),
        "gpu": ("0", "0", "1", ""),
    }
    workers = re.findall(r"^== (\w+): .* -m pytest .* -n (\d)", done.stdout, re.MULTILINE)
    assert workers == [("slow", "2"), ("slurm", "2"), ("gpu", "0"), ("vllm", "0")]


MEETING = """
import pathlib, pytest, time
here = pathlib.Path(__file__)
def meet(mine, other):
    here.with_name(mine).touch()
    until = time.monotonic() + 60
    while not here.with_name(other).exists():
        assert time.monotonic() < until, "they do not run side by side"
        time.sleep(0.05)
@pytest.mark.docker
def test_docker():
    meet("docker", "vllm")
    raise AssertionError("wrong")
@pytest.mark.vllm
def test_vllm():
    meet("vllm", "docker")
"""


def test_lanes_of_one_process_run_side_by_side_and_keep_their_rows_and_failures_apart(project):
    ini = project / "pytest.ini"
    ini.write_text(ini.read_text(encoding="utf-8") + " docker\n", encoding="utf-8")
    ready = NOTHING_INSTALLED + "lane_lacks() { :; }\n"
    done = run_tests(project, MEETING, f"{ready} main docker vllm")
    assert done.returncode == 1, done.stdout + done.stderr
    passed_alone = "0 of 1 passed alone only, to be mended: test_it.py::test_docker"
    assert table(done) == {"docker": ("0", "1", "0", passed_alone), "vllm": ("1", "0", "0", "")}
    assert done.stdout.index("== docker: pytest's closing line") < done.stdout.index("== vllm: ")


LONG = """
import pytest, time
@pytest.mark.slow
def test_short():
    pass
@pytest.mark.slow
def test_long():
    time.sleep(60)
"""
# What pytest does in a long lane that is interrupted, without its start, which takes a busy machine seconds.
INTERRUPTED = """#!/bin/bash
trap 'echo "!!! KeyboardInterrupt !!!"; echo "{line} in 0.10s"; kill %1; exit 2' INT
sleep 60 < /dev/null > /dev/null 2>&1 &
touch ready
wait
"""
# The time is over as soon as that pytest is ready: `timeout -s INT -k 60 SECONDS COMMAND...`
OVER_WHEN_READY = """
timeout() {
  set -m
  "${@:6}" & local child=$!
  until [[ -e ready ]]; do sleep 0.02; done
  kill -INT -- "-$child"
  wait "$child" || true
  return 124
}
lane_lacks() { :; }
"""
SHOW_ROWS = """printf '%s\\n' "${ROWS[@]}"; exit "$FAILED";"""


def interrupted(project, line):
    """The lanes' pytest has come to the result `line` when its time is over."""
    (project / ".venv" / "bin" / "python").write_text(INTERRUPTED.format(line=line), encoding="utf-8")


def assert_cut_and_left_out(done):
    assert done.returncode == 0, done.stdout + done.stderr
    cut, left_out = done.stdout.splitlines()[-2:]
    assert re.fullmatch(r"slow +1 .* cut short: 36 minutes are over", cut), cut
    assert re.fullmatch(r"slow +- +- +- +0 +left out: 36 minutes are over", left_out), left_out


def test_a_slow_machine_cuts_a_lane_short_and_leaves_out_those_after_it(project):
    interrupted(project, "1 passed")
    done = run_tests(project, LONG, f"{OVER_WHEN_READY} {{ lane slow; SECONDS=2160; lane slow; {SHOW_ROWS} }}")
    assert_cut_and_left_out(done)


@pytest.mark.slow
def test_a_lane_of_the_real_pytest_is_cut_short(project):
    """It waits until pytest has surely begun."""
    done = run_tests(project, LONG, f"lane_lacks() {{ :; }}; {{ SECONDS=2148; lane slow; lane slow; {SHOW_ROWS} }}")
    assert_cut_and_left_out(done)


def test_a_lane_that_has_to_be_killed_is_cut_short_too(project):
    """timeout's own status is then another one."""
    (project / ".venv" / "bin" / "python").write_text("#!/bin/bash\ntrap '' INT\nsleep 9 & wait\n", encoding="utf-8")
    impatient = 'timeout() { command timeout -k 0.2 "${@:1:2}" "${@:5}"; }; lane_lacks() { :; }'
    done = run_tests(project, LONG, f"{impatient}; {{ SECONDS=2157; lane slow; {SHOW_ROWS} }}")
    assert done.returncode == 0 and "cut short: 36 minutes are over" in done.stdout.splitlines()[-1], done.stdout


def test_the_lanes_after_the_longest_have_their_turn_on_a_slow_machine(project):
    done = run_tests(project, "", "SECONDS=2160; left_s slow; left_s slurm; left_s tests")
    assert [round(int(line) / 60) for line in done.stdout.splitlines()] == [0, 18, 18]


def test_a_failure_before_the_end_of_the_time_fails_the_run(project):
    interrupted(project, "1 failed, 1 passed")
    done = run_tests(project, LONG, f'{OVER_WHEN_READY} {{ lane slow; exit "$FAILED"; }}')
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(("seconds", "what"), [(0, "cut short"), (3300, "left out")])
def test_readmes_tests_fail_where_the_time_is_over(project, seconds, what):
    interrupted(project, "1 passed")
    done = run_tests(
        project, LONG, f'{OVER_WHEN_READY} {{ SECONDS={seconds}; tests || {{ echo "${{ROWS[*]}}"; exit 3; }}; }}'
    )
    assert done.returncode == 3 and f"{what}: 54 minutes are over" in done.stdout.splitlines()[-1], done.stdout


def assert_ends(process_id):
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(process_id, 0)
            time.sleep(0.05)


def test_what_runs_in_the_background_ends_with_the_script(project):
    done = run_tests(project, "", 'begin log sleep 977; echo "${JOBS[0]}"; exit 3')
    assert done.returncode == 3
    assert_ends(int(done.stdout))


def test_a_daemon_that_holds_the_output_open_does_not_hold_up_the_lane(project):
    """It is killed when the script ends."""
    daemon = "#!/bin/bash\nsetsid sleep 976 &\necho $! > daemon\necho '1 passed in 0.10s'\n"
    (project / ".venv" / "bin" / "python").write_text(daemon, encoding="utf-8")
    done = run_tests(project, "", "{ trap end_jobs EXIT; tests; }")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"== tests: pytest.s closing line, exit status 0, \d s\n1 passed", done.stdout), done.stdout
    assert_ends(int((project / "daemon").read_text(encoding="utf-8")))


def test_tests_that_run_again_end_in_time(project):
    """Five that wait for their limits, twice, would take hours on a machine without room."""
    waits_from_the_second_time_on = """
import pathlib, time
if pathlib.Path("again").exists():
    time.sleep(60)
pathlib.Path("again").touch()
"""
    done = run_tests(project, waits_from_the_second_time_on + ALWAYS, "left_again_s() { echo 2; }; tests")
    assert done.returncode == 124, done.stdout + done.stderr
    done = run_tests(project, ALWAYS, "left_again_s() { echo 0; }; tests")
    assert done.returncode == 1 and "1 passed" not in done.stdout, done.stdout + done.stderr


def test_a_step_that_hangs_is_killed_and_the_steps_after_it_are_left_out(project):
    hangs = """
install_programs() { :; }
install_beside() { :; }
lint() { setsid bash -c 'touch ready; exec sleep 975'; }
types() { echo never; }
docs() { :; }
lanes() { :; }
sleep() { until [[ -e ready ]]; do command sleep 0.05; done; }
"""
    done = run_tests(project, "", f"{{ {hangs} CI= main; }}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "66 minutes are over: what still runs is killed" in done.stdout
    assert re.search(r"^lint .* failed$", done.stdout, re.MULTILINE), done.stdout


def test_no_step_begins_when_the_time_of_all_is_over(project):
    done = run_tests(project, "", "SECONDS=4000; check types echo never; printf '%s\\n' \"${ROWS[@]}\"")
    assert "\nnever" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("left out: 66 minutes are over"), done.stdout


def test_lanes_that_pass_or_are_skipped_pass(project):
    done = run_tests(project, LANES, f"{NOTHING_INSTALLED} main docker gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert table(done).keys() == {"docker", "gpu"}


def test_agents_of_a_later_python_are_left_out_where_none_is_new_enough(project):
    nothing = "PYENV_ROOT=/nowhere PATH=/nowhere python_from 3.12"
    assert run_tests(project, "", f'[[ -z "$({nothing})" ]]').returncode == 0
    done = run_tests(project, "", "python_from() { :; } && install_python_agents && echo 'the rest'")
    assert done.returncode == 0 and done.stdout.endswith("the rest\n"), done.stdout + done.stderr
    for name in ("OpenHands", "harbor", "kimi-cli"):
        assert f"{name} cannot be installed; its tests are skipped" in done.stderr


BESIDE = """
note() { echo "$1" >> order; }
install_programs() { :; }
install_python_agents() { note openhands; }
environment() {
  note "$1"
  [[ $works ]] && mkdir -p "$1/bin" && install -m 755 /dev/null "$1/bin/python"
}
lint() { :; }
types() { until grep -q venv order; do sleep 0.05; done; note types; }
docs() { :; }
tests() { note tests; }
lanes() { lane_lacks vllm; note lanes; }
SWE_RL_VLLM_COMMAND= CI= everything
"""


def test_environments_are_made_beside_the_checks_and_before_the_tests(project):
    """One that cannot be made is tried again by its lane, which says so."""
    for works, again in (("yes", []), ("", [".venv-vllm"])):
        (project / "order").unlink(missing_ok=True)
        done = run_tests(project, "", f"{{ rm -rf .venv-vllm; works={works}; {BESIDE} }}")
        assert done.returncode == 0, done.stdout + done.stderr
        order = (project / "order").read_text(encoding="utf-8").split()
        assert order == ["openhands", ".venv-vllm", "types", "tests", *again, "lanes"]
        assert ("the CPU build of vLLM cannot be installed" in done.stdout) == bool(again)
