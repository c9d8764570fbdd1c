"""`.ci/run`'s second look: a test that fails beside others and passes alone is named; one that fails twice fails."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = """<!-- command: test -->
```bash
.venv/bin/python -m pytest -q -p no:xdist -p no:randomly {more}
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
ALWAYS = "def test_always():\n    raise AssertionError('wrong')\n"
MANY = "".join(f"def test_{n}():\n    raise AssertionError('wrong')\n" for n in range(6))


@pytest.fixture
def project(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text(encoding="utf-8"), encoding="utf-8")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "README.md").write_text(README.format(more=""), encoding="utf-8")
    return tmp_path


def run_tests(project, body):
    (project / "test_it.py").write_text(body, encoding="utf-8")
    script = f"cd '{project}' && source .ci/run && tests"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)


def test_failed_beside_others_passes_alone(project):
    done = run_tests(project, ONCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "once more alone: test_it.py::test_once" in done.stdout


def test_failed_twice_fails(project):
    done = run_tests(project, ONCE + ALWAYS)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


def test_many_failures_are_no_accident(project):
    done = run_tests(project, MANY)
    assert done.returncode == 1
    assert "once more alone" not in done.stdout


def test_what_passes_is_not_run_again(project):
    done = run_tests(project, "def test_right():\n    pass\n")
    assert done.returncode == 0
    assert "once more alone" not in done.stdout
