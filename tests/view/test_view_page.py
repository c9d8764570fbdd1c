"""The page in a browser: what is clicked, typed and drawn, during a run too."""

import json
import time
from collections import Counter

import pytest

from swe_rl.files.json_text import encode_json
from swe_rl.logger.folder import StatusWriter
from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.report.page import write_report
from swe_rl.view.server import ViewServer
from tests.report.conftest import build_run
from tests.support.browser import CHROMIUM, browser
from tests.view.conftest import write_traces

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
RUN = "#run=train%2Ffirst"


def faults(page) -> list[str]:
    """Of the page; that a trajectory has no tokens is answered by 404."""
    return [error for error in page.errors if "404" not in error]


def count(selector: str) -> str:
    return f"document.querySelectorAll({json.dumps(selector)}).length"


async def test_from_the_table_of_runs_to_a_token_and_back(runs, folder, traced, chromium_address):
    build_run(runs / "train" / "second", steps=2, seed=1)
    place = f"{RUN}&set=step_000002&trajectory={traced['trajectory_id']}"
    groups = Counter(one["group_id"] for one in read_jsonl(folder.trajectories(2)))
    ((group, members),) = groups.most_common(1)
    assert members > 1
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        await page.open(server.url)
        await page.until(f"{count('.runs tbody tr')} === 2 && {count('figure svg')} === 4")
        assert "token" not in await page.js("location.href")
        await page.js(
            "document.querySelector('select[id=\"add column\"]').value = 'clip_fraction'; "
            "document.querySelector('select[id=\"add column\"]').dispatchEvent(new Event('change'))"
        )
        await page.until(f"{count('figure svg')} === 5")
        assert "column=clip_fraction" in await page.js("location.hash")
        for key in ("j", "j", "Enter"):
            await page.press(key)
        await page.until("location.hash.startsWith('#run=') && document.body.innerText.includes('Any quantity')")

        await page.open(f"http://127.0.0.1:{server.port}/{RUN}&list=1&set=step_000002")
        await page.until(f"{count('.list-of-all tbody tr')} === 64")
        await page.press("/")
        for letter in (typed := "package-02"):
            await page.press(letter)
        many = sum(typed in one["instance_id"] for one in read_jsonl(folder.trajectories(2)))
        assert 1 < many < 64
        await page.until(f"{count('.list-of-all tbody tr')} === {many}")
        assert await page.js("document.activeElement.type") == "search"  # typing goes on
        await page.press("Escape")
        await page.press("j")
        await page.press("Enter")
        await page.until(f"{count('article .turn')} > 0")
        first = await page.js("location.hash")
        await page.press("j")
        await page.until(f"location.hash !== {json.dumps(first)} && {count('article')} === 1")
        await page.press("Escape")
        await page.until(f"{count('.list-of-all tbody tr')} === {many}")  # the filter is as it was

        await page.open(f"http://127.0.0.1:{server.port}/{place}")
        await page.until("document.querySelector('.prompt')?.innerText.includes('It is broken.')")
        await page.js("[...document.querySelectorAll('a.door')].find((one) => one.innerText === 'tokens').click()")
        await page.until(f"{count('.tokens .token')} > 20")
        assert "😀" in await page.js("document.querySelector('.tokens').innerText")
        await page.js("document.querySelector('.tokens .t0').dispatchEvent(new PointerEvent('pointerenter'))")
        tip = await page.js("document.getElementById('tip').innerText")
        assert all(name in tip for name in ("log-probability", "advantage", "weight version", "in the loss"))
        await page.open(f"http://127.0.0.1:{server.port}/{RUN}&set=step_000002&group={group}")
        await page.until(f"{count('.side-by-side > section')} === {members}")
        await page.press("Escape")
        await page.until(f"{count('.list-of-all')} === 1")
        assert faults(page) == []


@pytest.mark.slow
async def test_a_step_is_there_within_five_seconds_and_nothing_scrolls_sideways(runs, folder, traced, chromium_address):
    """Of a run that goes on: on the page of the run, in the table of runs, and in the list of trajectories."""
    status = StatusWriter(folder.status_json, config_hash="h", step=3)
    records = [dict(one, step=4) for one in read_jsonl(folder.trajectories(2))]
    narrow = "document.documentElement.scrollWidth <= 420"
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        with folder, StepLog(folder) as log:
            await page.width(420)
            await page.open(server.url)
            await page.until(f"{count('.badge.running')} === 1 && {count('figure svg')} === 4")
            assert await page.js(narrow)
            await page.open(f"http://127.0.0.1:{server.port}/{RUN}")
            await page.until(f"{count('table.steps tbody tr')} === 3 && {count('figure svg')} > 8")
            assert await page.js(narrow)
            await page.js("window.scrollTo(0, 700)")
            log.append_trajectories(4, records)
            log.append({"step": 4, "reward_mean": 0.5, "superseded_tokens": 3})
            began_s = time.monotonic()
            status.heartbeat(4)
            await page.until(f"{count('table.steps tbody tr')} === 4", timeout_s=5)
            assert time.monotonic() - began_s < 5 and await page.js("window.scrollY") == 700
            for rest, drawn in [
                ("&list=1", ".list-of-all tbody tr"),
                (f"&set=step_000002&trajectory={traced['trajectory_id']}", ".turn"),
                (f"&set=step_000002&trajectory={traced['trajectory_id']}&tokens=0", ".tokens .token"),
                (f"&set=step_000002&group={traced['group_id']}", ".side-by-side section"),
            ]:
                await page.open(f"http://127.0.0.1:{server.port}/{RUN}{rest}")
                await page.until(f"{count(drawn)} > 0")
                assert await page.js(narrow), rest
            assert faults(page) == []


async def test_every_attack_stays_text(runs, folder, chromium_address):
    record = dict(read_jsonl(folder.trajectories(2))[0], instance_id=ATTACK, trajectory_id=ATTACK, group_id=ATTACK)
    attacks = {
        "patch": f"+++ {ATTACK}\n+{ATTACK}",
        "error": ATTACK,
        "tests": {ATTACK: False},
        "grade_log": ATTACK,
        "times_s": {ATTACK: 1.0},
    }
    turn = {"index": 0, "exit_code": 1, "format_error": True, "completion_s": 0.1, "command_s": 0.1}
    record |= attacks | {"turns": [turn | dict.fromkeys(("message", "command", "observation"), ATTACK)]}
    folder.trajectories(9).write_bytes(encode_json(record | {"status": ATTACK}) + b"\n")
    folder.config_yaml.write_text(f"name: {json.dumps(ATTACK)}\nagent: {{name: {json.dumps(ATTACK)}}}\n")
    (folder.path.parent / f"{ATTACK.replace('/', '')}").mkdir()
    build_run(folder.path.parent / ATTACK.replace("/", ""), steps=1)
    write_traces(folder, ATTACK, (ATTACK,))
    with StepLog(folder) as log:
        log.append({"step": 4, "statuses": {ATTACK: 3}, "cheating": {ATTACK: 2}, ATTACK: 1.0})
    where = f"&set=step_000009&trajectory={ATTACK.replace('=', '%3D').replace(' ', '%20')}"
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        await page.open(server.url)
        await page.until(f"{count('.runs tbody tr')} === 2")
        for rest, shown in [
            ("", "h1"), ("&list=1", ".list-of-all tbody tr"), (where, ".turn"), (f"{where}&tokens=0", "main"),
            (where.replace("trajectory=", "group="), ".side-by-side section"),
        ]:  # fmt: skip
            await page.open(f"http://127.0.0.1:{server.port}/{RUN}{rest}")
            await page.until(f"{count(shown)} > 0 && document.body.innerText.includes('onerror')")
            assert await page.js(count("main img, main script")) == 0
            assert await page.js("document.title") != "owned"
        assert faults(page) == []


async def test_it_says_when_the_server_has_ended(runs, chromium_address):
    async with browser(chromium_address) as page:
        async with ViewServer(runs) as server:
            await page.open(server.url)
            await page.until(f"{count('.runs tbody tr')} === 1 && document.getElementById('news').hidden")
        await page.until("document.getElementById('news').innerText.includes('has ended')")


async def test_a_link_opens_at_a_turn_and_the_tab_says_what_is_shown(runs, folder, chromium_address):
    record = next(row for row in read_jsonl(folder.trajectories(2)) if len(row["turns"]) > 2)
    place = f"{RUN}&set=step_000002&trajectory={record['trajectory_id']}&turn=2"
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        await page.open(server.url)
        await page.until(f"{count('.runs tbody tr')} === 1")
        assert await page.js("document.title") == "swe_rl runs"
        assert "ago" in await page.js("document.querySelector('.runs tbody tr').innerText")
        await page.open(f"http://127.0.0.1:{server.port}/{place}")
        await page.until("document.querySelector('#turn-2.here') !== null && window.scrollY > 0")
        title = await page.js("document.title")
        assert title == f"{record['trajectory_id']} · bugs_grpo: tiny · bugs · swe_rl"
        assert await page.js("document.querySelectorAll('.crumbs a')[1].innerText") == "bugs_grpo: tiny · bugs"
        hash_of_link = await page.js("document.querySelector('#turn-1 header a').hash")
        assert hash_of_link.endswith("turn=1")
        assert faults(page) == []


async def test_figures_say_what_they_are_and_charts_of_zeros_are_not_drawn(runs, folder, chromium_address):
    lines = [dict(row, clip_fraction=0.0) for row in read_jsonl(folder.steps_jsonl)]
    folder.steps_jsonl.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        await page.open(server.url)
        await page.until(f"{count('.runs tbody tr')} === 1")
        await page.open(f"http://127.0.0.1:{server.port}/{RUN}")
        await page.until("document.body.innerText.includes('0 in every step, and not drawn: clipped tokens')")
        assert "Clipped tokens" not in await page.js(
            "[...document.querySelectorAll('h3')].map((one) => one.innerText).join()"
        )
        assert "nats a token" in await page.js("[...document.querySelectorAll('th')].map((one) => one.title).join()")


async def test_a_link_of_the_report_opens_the_attempt_in_the_viewer(folder, chromium_address, monkeypatch):
    """The report is a file, and so another site: the viewer's cookie has to come along."""
    async with ViewServer(folder.path) as server, browser(chromium_address) as page:
        monkeypatch.setattr("swe_rl.report.tasks.VIEWER_PORT", server.port)
        report = write_report(folder, None, lambda config, instance_id: f"What {instance_id} asks.")
        await page.open(server.url)
        await page.until("!location.href.includes('token')")
        await page.open(report.as_uri())
        asked = await page.until("document.querySelector('.task pre')?.textContent")
        await page.js("document.querySelector('.task a').click()")
        instance_id = asked.removeprefix("What ").removesuffix(" asks.")
        await page.until(f"location.port === '{server.port}' && document.title.includes({json.dumps(instance_id)})")
        assert faults(page) == []
