"""`job=view` as a command: what it says, what it imports, how it ends, and what it refuses."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.job import view
from tests.report.conftest import build_run

HEAVY = {"torch", "transformers", "ray", "vllm", "datasets", "wandb"}
# The command itself, and at its end the heavy packages that it has imported.
COMMAND = (
    "import sys\nfrom swe_rl.__main__ import main\nstatus = main()\n"
    f"print('imported', *sorted({HEAVY!r} & set(sys.modules)))\nsys.exit(status)"
)


def get(opener, url):
    with opener.open(url, timeout=20) as answer:
        return json.loads(answer.read()) if "/api/" in url else answer.read().decode()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_asked_to_end(tmp_path, sent):
    build_run(tmp_path / "outputs" / "train" / "first", steps=1)
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", COMMAND, "job=view"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        assert [line.split()[0] for line in lines] == ["runs", "open", "stop"], process.stderr.read()
        url = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", lines[1])
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert "view.js" in get(opener, url[0])
        base = url[0].partition("?")[0]
        assert [row["run"] for row in get(opener, f"{base}api/runs")["runs"]] == ["train/first"]
        (trajectory, *_) = get(opener, f"{base}api/trajectories?run=train/first")["rows"]
        assert trajectory["set"] == "step_000001" and get(opener, f"{base}api/run?run=train/first")["title"]
        process.send_signal(sent)
        said, complained = process.communicate(timeout=20)
        assert process.returncode == 0 and said == "imported\n" and "Traceback" not in complained
        with socket.create_server(("127.0.0.1", int(url[1]))):
            pass  # the port is free
    finally:
        process.kill()
        process.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]
    assert not list((tmp_path / "outputs").glob("view*"))


def test_a_port_that_is_taken_is_one_paragraph(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = compose(["job=view", f"job.runs={tmp_path}", f"job.port={port}"]).config
        with pytest.raises(UserError, match=f"^job.port={port}: the port is in use"):
            view.run(config, None)


@pytest.mark.parametrize("given", ["job.runs", "paths.outputs"])
def test_a_folder_that_is_not_there(tmp_path, given):
    config = compose(["job=view", f"{given}={tmp_path / 'nothing'}"]).config
    with pytest.raises(UserError, match=f"^{given}=.*nothing is no folder"):
        view.run(config, None)
