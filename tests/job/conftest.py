"""Configurations, folders and a SLURM job for runs that do nothing but begin and end."""

import os
from pathlib import Path

import pytest

from swe_rl.config.compose import compose


@pytest.fixture
def make(tmp_path):
    """A configuration that writes below `tmp_path`."""

    def config(*overrides):
        return compose([f"paths.outputs={tmp_path}", *overrides]).config

    return config


@pytest.fixture
def fresh(tmp_path):
    def folder(name="2026-01-01"):
        path = Path(os.path.normpath(tmp_path / "train" / name))
        path.mkdir(parents=True)
        (path / "config.yaml").write_text("a: 1\n")
        return path

    return folder


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """This process is in job 7, and `scontrol` writes down what it is asked; the call starts the job again."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    asked = tmp_path / "asked"
    program.write_text(
        f'#!/bin/sh\nif [ $1 = show ]; then echo "JobId=7 JobState=RUNNING Requeue=1 PreemptTime=None"\n'
        f"else echo $* >> {asked}; fi\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def again(restarts):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))

    again.asked = lambda: asked.read_text().splitlines() if asked.exists() else []
    return again
