"""The tutorials: every command composes; each page is typed from top to bottom, but for what names a need.

A block of commands under `<!-- needs: WHAT -->` needs what a test's machine may lack. Blocks of a page share one shell
and one folder. Pages on SLURM are typed in tests/slurm.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from swe_rl.config.compose import compose

DOCS = Path(__file__).parents[1] / "docs"
TYPED = {  # what is seen in the end
    "own_agent": ("1 passed", "0 errors", "git diff --stat", "held-out resolved rate"),
    "own_environment": ("1 passed", "pass@1 100.0 %", "pass@1 0.0 %", "resolved 100.0%", "held-out resolved rate"),
    "own_reward": ("2 passed", "resolved 0.96", "unresolved 0.0", "held-out resolved rate"),
    "laptop_to_gpu": ("0 errors", "refused, as it should be"),
    "reproduce": ("[kv_crowded]", "gpu_hours", "Average", "Nothing was submitted: an array of 2 jobs"),
    "debug_reward": ("resolved 100.0%", "resolved 0.0%"),
    "cost": ("plan", "GPU-hours"),
}
COMPOSED = (*TYPED, "slurm", "resume")
NOT_OURS = ("--config-dir", "$mine")  # options of the reader's own
FEW = ("trainer.steps=1", "rollout.eval_n=1")  # in place of what a page has, where a run trains


def blocks(page: str) -> list[tuple[str, str]]:
    """(what it needs, commands)"""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^(?:<!-- needs: (.*?) -->\n)?```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The words of each line that starts swe_rl, options alone."""
    found = []
    for _, block in blocks(page):
        for line in re.findall(r"python -m swe_rl ([^\n|>]*)", re.sub(r"\$\(.*?\)", "FOLDER", block)):
            words = shlex.split(line, comments=True)
            if not any(word.startswith(NOT_OURS) for word in words):
                found.append([_one(word, "--multirun" in words) for word in words if word != "--multirun"])
    return found


def _one(word: str, of_a_sweep: bool) -> str:
    """`plan` is `job=plan`; of the values of a sweep the first."""
    if word.isalpha():
        return f"job={word}"
    if not of_a_sweep or "[" in word:
        return word
    return re.sub(r"=range\(\d+\)$", "=0", word.partition(",")[0])


@pytest.mark.parametrize("page", COMPOSED)
def test_every_command_composes(page):
    assert blocks(page)
    for words in commands(page):
        compose([word for word in words if not word.startswith(("hydra", "+sweep"))])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", TYPED)
def test_it_is_typed_from_top_to_bottom(page, tmp_path):
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    few = " ".join(FEW)
    program.write_text(
        f"""#!/bin/bash
case "$*" in *job=rollout*|*job=eval*|*job=simulate*) ;; *trainer.steps=*) set -- "$@" {few};; esac
exec {shlex.quote(sys.executable)} "$@"
"""
    )
    program.chmod(0o755)
    script = "\n".join(commands for needs, commands in blocks(page) if not needs)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    desk = tmp_path / "desk"
    desk.mkdir()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=desk, env=environ, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in TYPED[page]:
        assert text in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
