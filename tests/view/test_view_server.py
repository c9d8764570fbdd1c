import asyncio
import json
import os
import shutil
import socket
from contextlib import suppress

import pytest
from aiohttp import ClientSession, CookieJar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from swe_rl.errors import UserError
from swe_rl.files.disk import read_json
from swe_rl.files.json_text import decode_json, encode_json
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.report.compare.read import read_measured
from swe_rl.report.page import build_payload
from swe_rl.view.answers import Answers, guard_answer
from swe_rl.view.files import ViewError
from swe_rl.view.server import REPORT_SCRIPTS, VIEW_SCRIPTS, ViewServer

ADDRESSES = [
    "/",
    "/static/page.css",
    "/api/runs",
    "/api/stamp",
    "/api/run?run=train/first",
    "/grade_log?run=x",
    "/trace?run=x",
    "/nothing",
]


@pytest.fixture
async def server(runs):
    async with ViewServer(runs) as running:
        yield running


@pytest.fixture
async def visitor(server):
    """Who has opened the printed address."""
    base = f"http://127.0.0.1:{server.port}"
    async with ClientSession(base, cookie_jar=CookieJar(unsafe=True)) as session:
        assert (await session.get(f"/?token={server.token}")).status == 200
        yield session


async def test_without_the_token_nothing_is_answered(server):
    async with ClientSession(f"http://127.0.0.1:{server.port}") as stranger:
        for address in [*ADDRESSES, "/?token=", "/?token=wrong", "/?token=ü", f"/api/runs?token={server.token}"]:
            answer = await stranger.get(address)
            assert answer.status == 403 and "job=view printed" in await answer.text()
        cookies = {f"swe_rl_view_{server.port}": server.token[:-1], "swe_rl_view_1": server.token}
        assert (await stranger.get("/api/runs", cookies=cookies)).status == 403


async def test_the_printed_address_gives_a_cookie_and_leaves_no_token(server, visitor):
    answer = await visitor.get(f"/?token={server.token}", allow_redirects=False)
    assert answer.status == 302 and answer.headers["Location"] == "/"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and str(server.port) in cookie
    for address in ADDRESSES[:5]:
        assert (await visitor.get(address)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil.example", "", "[", "10.0.0.7:80"],
)
async def test_names_of_other_hosts_are_refused(visitor, host):
    """A name that an attacker points at loopback (DNS rebinding) brings the cookie's holder, and is refused."""
    for address in ADDRESSES:
        answer = await visitor.get(address, headers={"Host": host})
        assert answer.status == 403 and "own names" in await answer.text()


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:7"])
async def test_a_tunnel_may_begin_at_another_port(visitor, host):
    assert (await visitor.get("/api/stamp", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "address",
    [
        *(
            "/../etc/passwd",
            "/static/../view.html",
            "/static/%2e%2e%2fpage.py",
            "/static/page.py",
            "/static/..%2f..%2ferrors.py",
        ),
        *("/api/run?run=..", "/api/run?run=../../etc", "/api/run?run=/etc", "/api/run?run=train"),
        *(
            "/api/trajectory?run=train/first&set=../config&id=x",
            "/grade_log?run=train/first&set=step_000001&id=../config.yaml",
        ),
        *("/api/group?run=train/first&set=step_000001&id=x", "/api/tokens?run=../first&set=step_000001&id=x"),
    ],
)
async def test_no_path_leads_out(visitor, address):
    answer = await visitor.get(URL(str(visitor._base_url.origin()) + address, encoded=True))
    assert answer.status == 404 and "root:" not in await answer.text()


async def test_the_timeline_is_a_file_for_perfetto(visitor, folder):
    phases = [[1.0, 2.0, "boot", None, None], [2.0, 3.0, "decode", 0, 0]]
    lane = {"engines": ["engine0"], "status": "resolved", "span_s": [1.0, 3.0], "phases": phases, "turns": [[9, 0, 3]]}
    with StepLog(folder) as log:
        for step in (1, 2):
            ids = {"trajectory_id": f"train.{step}.a.0.0", "group_id": f"train.{step}.a", "step": step}
            log.append_programs(step, "program", [lane | ids])
    for query, steps, name in (("", [1, 2], "trace.json"), ("&step=2", [2], "trace_step_2.json")):
        answer = await visitor.get(f"/trace?run=train/first{query}")
        assert answer.content_type == "application/json" and "default-src" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
        found = decode_json(await answer.read())["traceEvents"]
        assert [one["args"]["trajectory"] for one in found if one.get("cat") == "trajectory"] == [
            f"train.{step}.a.0.0" for step in steps
        ]
    for wrong in ("run=train/first&step=3", "run=..", "run=train/first&step=x"):
        assert (await visitor.get(f"/trace?{wrong}")).status in (400, 404)


async def test_a_query_that_is_wrong_is_said(visitor):
    for address in (
        "/api/run",
        "/api/tokens?run=train/first&set=step_000001",
        "/api/trajectories?run=train/first&sort=x",
    ):
        assert (await visitor.get(address)).status == 400
    answer = await visitor.get("/api/trajectories?run=train/first&set=step_000001&offset=-1")
    assert answer.status == 400 and "offset" in await answer.text()


FILES = [
    *("status.json", "config.yaml", "steps.jsonl", "evals.jsonl", "events.jsonl", "summary.json", "eval.json", ".lock"),
    *("trajectories/step_000002.jsonl", "programs/step_000002.jsonl", "rows/step_000002.bin", "traces.db"),
    ".hydra/overrides.yaml",
]


@pytest.mark.parametrize("name", FILES)
async def test_a_named_pipe_in_place_of_a_file_holds_up_nobody(visitor, folder, name):
    """Whoever opened it would wait until somebody writes there: job=view for all runs, the report and job=compare."""
    pipe = folder.path / name
    pipe.unlink(missing_ok=True)
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)

    async def ask_all():
        (first,) = {row["trajectory_id"] for row in read_jsonl(folder.trajectories(1))[:1]}
        for name in ("runs", "stamp", "curves", "options", "run", "trajectories", "tokens", "prompt"):
            for set_name, row in (("", ""), ("step_000001", first), ("step_000002", first)):
                query = {"run": "train/first", "column": "reward_mean", "set": set_name, "id": row}
                answer = await visitor.get(f"/api/{name}", params=query)
                assert answer.status < 500, (name, query, await answer.text())
        assert (await visitor.get("/trace?run=train/first")).status == 200
        assert (await visitor.get("/api/trajectories?run=train/first")).status == 200

    looks = [ask_all(), asyncio.to_thread(build_payload, folder)]
    looks += [asyncio.to_thread(read_measured, folder.path, "job.runs", 0), asyncio.to_thread(folder.overrides)]
    try:
        await asyncio.wait_for(asyncio.gather(*looks), 20)
    finally:
        with suppress(OSError):  # whoever waits there goes on
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


ODD = st.recursive(
    st.sampled_from([None, True, -1, 1.5, 10**30, 10**400, 1e308, "x", "", "1", "\u2028", float("nan")]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "mean", "1"]), inner, max_size=2),
    max_leaves=4,
)
TEXT = st.sampled_from(
    ["", "9" * 5000, "²", "-1", "step_000001", "eval_000001", f"step_{'9' * 5000}", "step_²", "step_1", "x" * 4000]
)
QUERY = st.fixed_dictionaries(
    {"run": st.sampled_from(["train/first", "train/first\x00", "../..", "a" * 4000])},
    optional={
        "set": TEXT, "id": TEXT, "offset": TEXT, "row": TEXT, "start": TEXT, "step": TEXT, "text": TEXT,
        "cursor": st.builds("{}:{}".format, TEXT, TEXT), "reward": st.sampled_from(["positive", "zero", "none", "x"]),
        "sort": st.sampled_from(["reward", "sample", "num_calls", "status", "agent_s", "x"]), "column": TEXT,
    },
)  # fmt: skip
NAMES = (
    "runs",
    "stamp",
    "curves",
    "options",
    "run",
    "trajectories",
    "trajectory",
    "group",
    "programs",
    "tokens",
    "prompt",
)


def spoiled(records, data):
    """With odd values in one of them."""
    record = data.draw(st.sampled_from(records))
    for key in data.draw(st.lists(st.sampled_from([*record]), max_size=3)):
        record[key] = data.draw(ODD)
    return "".join(f"{json.dumps(record)}\n" for record in records)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_query_and_no_line_is_a_fault(runs, folder, data):
    """Who asks is told what is wrong with it in a sentence."""
    trajectories = read_jsonl(folder.trajectories(1))[:3]
    place = {"run": "train/first", "set": "step_000001", "id": trajectories[0]["trajectory_id"]}
    group = place | {"id": trajectories[0]["group_id"]}
    steps, status = read_jsonl(folder.steps_jsonl), read_json(folder.status_json)
    evals = read_jsonl(folder.evals_jsonl) or [{"step": 1, "split": "eval", "resolved_rate": 0.5, "cheating": {"x": 1}}]
    lost = {"time": 1.0, "event": "engine_lost", "engine": "e0", "reason": "x", "requests": 1, "work_s": 1.0}
    events = [lost, {"time": 2.0, "event": "engine_back", "engine": "e0", "away_s": 1.0}]
    copy = RunFolder(runs / "train" / "odd")
    shutil.copytree(folder.path, copy.path, dirs_exist_ok=True)
    copy.trajectories(1).write_text(spoiled(trajectories, data))
    copy.steps_jsonl.write_text(spoiled(steps, data))
    copy.evals_jsonl.write_text(spoiled(evals, data))
    copy.events_jsonl.write_text(spoiled(events, data))
    copy.status_json.write_text(spoiled([status], data))
    answers = Answers(runs)
    query = data.draw(QUERY)
    for asked in (query, place, group, query | place, query | group, {"run": "train/first"}):
        if "run" in asked and asked["run"] == "train/first":
            asked = asked | {"run": "train/odd"}
        for name in NAMES:
            try:
                guard_answer(lambda name=name, asked=asked: encode_json(answers.by_name[name](lists(asked))))
            except ViewError as error:
                assert error.status in (400, 404, 422) and str(error).endswith((".", "again."))


def lists(asked):
    return {key: [value] for key, value in asked.items()}


@pytest.mark.parametrize("reward", ["high", {"a": 1}, [1], True])
@pytest.mark.parametrize("wanted", ["", "positive", "zero"])
async def test_an_odd_line_takes_only_its_part(visitor, folder, reward, wanted):
    """A reward that is a text, and a sample beside numbers that is one."""
    first, second, *_ = read_jsonl(folder.trajectories(1))
    second |= {"reward": reward, "sample": "x", "group_id": first["group_id"], "num_calls": 10**400}
    folder.trajectories(1).write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    place = {"run": "train/first", "set": "step_000001"}
    for sort in ("reward", "sample", "num_calls"):
        answer = await visitor.get("/api/trajectories", params=place | {"reward": wanted, "sort": sort})
        assert answer.status == 200, await answer.text()
    answer = await visitor.get("/api/group", params=place | {"id": first["group_id"]})
    assert len((await answer.json())["trajectories"]) == 2


@pytest.mark.parametrize(
    "status", ['{"status": "running", "step": "a", "started": "b"}', '{"status": "running", "started": 1e300}', "[]"]
)
async def test_an_odd_status_is_an_unknown_one(visitor, folder, status):
    folder.status_json.write_text(status)
    folder.steps_jsonl.write_text('{"step": %s, "loss": 1}\n' % ("9" * 400))
    answer = await visitor.get("/api/run?run=train/first")
    assert answer.status == 200 and (await answer.json())["status"]["label"] == "unknown"
    assert (await visitor.get("/api/curves?run=train/first&column=loss")).status == 200


@pytest.mark.parametrize(
    "query", [{"set": f"step_{'9' * 5000}"}, {"set": "step_²"}, {"set": "step_-1"}, {"cursor": f"x:{'9' * 5000}"}]
)
@pytest.mark.parametrize("name", ["trajectories", "tokens"])
async def test_an_odd_query_is_said(visitor, query, name):
    answer = await visitor.get(f"/api/{name}", params={"run": "train/first", "id": "x"} | query)
    assert answer.status in (200, 400, 404), await answer.text()


async def test_it_only_reads(visitor):
    for method in ("post", "put", "delete", "patch"):
        for address in ("/", "/api/runs", "/api/run?run=train/first"):
            assert (await getattr(visitor, method)(address)).status == 405


async def test_every_answer_has_the_policy(visitor):
    for address in [*ADDRESSES, "/api/run?run=.."]:
        headers = (await visitor.get(address)).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers


async def test_what_agents_wrote_is_never_a_page(visitor):
    for address in ADDRESSES[2:5]:
        assert (await visitor.get(address)).content_type == "application/json"
    answer = await visitor.get("/grade_log?run=train/first&set=step_000001&id=x")
    assert answer.content_type == "text/plain"
    page = await (await visitor.get("/")).text()
    for name in (*REPORT_SCRIPTS, *VIEW_SCRIPTS):
        assert f'src="/static/{name}"' in page
        script = await (await visitor.get(f"/static/{name}")).text()
        assert not any(
            word in script for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(")
        )


async def test_secrets_of_the_environment_are_masked(runs, folder, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "hunter2hunter2")
    folder.config_yaml.write_text(folder.config_yaml.read_text() + "note: hunter2hunter2\n")
    async with ViewServer(runs) as server, ClientSession(f"http://127.0.0.1:{server.port}") as session:
        cookies = {f"swe_rl_view_{server.port}": server.token}
        answer = await (await session.get("/api/run?run=train/first", cookies=cookies)).text()
    assert "hunter2" not in answer and "note: ***" in decode_json(answer)["config"]


async def test_it_listens_on_loopback_alone(server):
    (address,) = [site.sockets[0].getsockname() for site in (list(server._runner.sites)[0]._server,)]
    assert address[0] == "127.0.0.1" and server.url.startswith(f"http://127.0.0.1:{server.port}/?token=")
    assert len(server.token) >= 32


async def test_a_port_that_is_taken_is_named(runs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"job.port={port}.*in use"):
            async with ViewServer(runs, port):
                pass


async def test_each_start_has_a_token_of_its_own(runs):
    assert ViewServer(runs).token != ViewServer(runs).token
