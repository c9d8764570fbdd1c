"""This machine's answers: programs that end, hang or are missing; servers over TCP and unix sockets; disks, ports."""

import base64
import json
import os
import re
import socket
import socketserver
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swe_rl.check.preflight.system import HttpQuestion, System
from swe_rl.host.program import Completed, Unanswered, run_program
from tests.support.waiting import alive

HERE = System()


class Handler(BaseHTTPRequestHandler):
    seen: list = []

    def do_GET(self):
        self.seen.append((self.command, self.path, self.headers.get("Authorization")))
        status = {"/gone": 404, "/moved": 302}.get(self.path.partition("?")[0], 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b'{"path": "%s"}' % self.path.encode())

    do_HEAD = do_GET

    def address_string(self):
        return "client"

    def log_message(self, *_):
        pass


class UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


@contextmanager
def serving(server):
    Handler.seen = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as started:
        yield f"127.0.0.1:{started.server_port}"


def test_a_program_that_ends():
    done = HERE.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (done.status, done.stdout, done.stderr, done.reason) == (3, "out\n", "err\n", "err")


@pytest.mark.parametrize(
    ("stderr", "stdout", "reason"),
    [
        ('time="now" level=warning msg="not shared"\nError: no newuidmap\nmore', "", "Error: no newuidmap"),
        ("WARNING: old\n", "No devices were found\n", "No devices were found"),
        ("warning: only this\n", "", "warning: only this"),
        ("", " \n", "exit status 6"),
    ],
)
def test_the_reason_is_the_first_error(stderr, stdout, reason):
    assert Completed(6, stdout, stderr).reason == reason


def test_a_program_speaks_english_or_has_the_environment_that_it_is_given():
    code = "import os; print(os.environ.get('LC_ALL'), os.environ.get('GIVEN'))"
    assert HERE.run([sys.executable, "-c", code]).stdout == "C None\n"
    assert run_program([sys.executable, "-c", code], environment={"GIVEN": "x"}).stdout == "None x\n"


def test_a_program_that_is_missing():
    assert HERE.run(["no-such-program-here"]) is None
    assert HERE.find_program("no-such-program-here") is None


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path):
    pid_file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid_file}; wait"
    start = time.monotonic()
    with pytest.raises(Unanswered, match="no answer in"):
        HERE.run(["bash", "-c", script], timeout_s=0.5)
    assert time.monotonic() - start < 5
    pid = int(pid_file.read_text())
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.02)
    assert not alive(pid)


ENGINE = {
    "/version": {"ApiVersion": "1.44"},
    "/info": {"DockerRootDir": "/data"},
    "/images/json": [{"RepoTags": ["a:1"], "RepoDigests": None}],
    "/images/a:1/json": {"Id": "1"},
}


class EngineHandler(Handler):
    def do_GET(self):
        path = re.sub(r"^/v1\.44|\?.*", "", self.path)
        body = json.dumps(ENGINE.get(path, {"message": f"no such thing as {path}"})).encode()
        self.send_response(200 if path in ENGINE else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_container_engine_over_its_socket(tmp_path):
    path = str(tmp_path / "s")
    with serving(UnixServer(path, EngineHandler)):
        engine = HERE.engine(f"unix://{path}")
        assert HERE.is_socket(path) and not HERE.is_socket(str(tmp_path))
        assert engine.info()["DockerRootDir"] == "/data"


def test_a_container_engine_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.delitem(ENGINE, "/info")
    path = str(tmp_path / "s")
    with (
        serving(UnixServer(path, EngineHandler)),
        pytest.raises(Unanswered, match="status 404: no such thing"),
    ):
        HERE.engine(f"unix://{path}").info()
    with pytest.raises(Unanswered, match="^connection refused$"):
        HERE.engine(f"unix://{path}").info()
    with pytest.raises(Unanswered, match="^no such file"):
        HERE.engine("unix:///no/such/socket").info()


def test_http(server):
    answer = HERE.http(HttpQuestion(f"http://{server}/x", headers={"Authorization": "Bearer k"}))
    assert (answer.status, answer.json()) == (200, {"path": "/x"})
    assert HERE.http(HttpQuestion(f"http://{server}/gone", method="HEAD")).status == 404
    assert Handler.seen == [("GET", "/x", "Bearer k"), ("HEAD", "/gone", None)]


def test_a_redirect_is_not_followed(server):
    answer = HERE.http(HttpQuestion(f"http://{server}/moved", headers={"Authorization": "Bearer k"}))
    assert answer.status == 302
    assert [path for _, path, _ in Handler.seen] == ["/moved"]


def test_a_login_in_the_address_is_sent_as_such(server):
    assert HERE.http(HttpQuestion(f"http://bob:p%40ss@{server}/x")).status == 200
    assert base64.b64decode(Handler.seen[0][2].removeprefix("Basic ")) == b"bob:p@ss"


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (HttpQuestion("http://127.0.0.1:1/"), "connection refused"),
        (HttpQuestion("file:///etc/passwd"), "not an http"),
        (HttpQuestion("http://[bad"), "."),
        (HttpQuestion("http://127.0.0.1:notaport/"), "."),
    ],
)
def test_servers_that_do_not_answer(question, reason, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(Unanswered, match=reason):
        HERE.http(question)


def test_a_server_that_accepts_and_says_nothing(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(Unanswered, match="in time|timed out"):
            HERE.http(HttpQuestion(address, timeout_s=0.2))


def test_an_answer_that_is_not_json(server):
    with pytest.raises(Unanswered, match="not JSON"):
        HERE.http(HttpQuestion(f"http://{server}/x", method="HEAD")).json()


def test_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "in use" in HERE.bind_refused("127.0.0.1", port)
    assert HERE.bind_refused("127.0.0.1", port) is None
    assert HERE.bind_refused("127.0.0.1", 70000)
    assert HERE.bind_refused("no.such.host.invalid", 80)


def test_disks_and_files(tmp_path):
    assert HERE.disk_free_bytes(str(tmp_path / "not" / "made" / "yet")) > 0
    assert HERE.exists(str(tmp_path)) and not HERE.exists(str(tmp_path / "x"))
    (tmp_path / "b").write_text("text")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    assert HERE.read_text(str(tmp_path / "a")) == "text"
    assert HERE.read_text(str(tmp_path / "x")) is None and HERE.read_text(str(tmp_path)) is None
    assert HERE.list_folder(str(tmp_path)) == ["a", "b"] and not HERE.list_folder(str(tmp_path / "x"))
    assert HERE.resolve(str(tmp_path / "a")) == os.path.realpath(tmp_path / "b")
    assert HERE.writable(str(tmp_path / "new"))


def test_the_machine_itself():
    assert HERE.cpus() >= 1
    assert HERE.memory_bytes() > 100_000_000
    assert HERE.user[1] == os.getuid()
    assert HERE.version("pytest") == pytest.__version__
    assert HERE.version("no-such-distribution") is None
