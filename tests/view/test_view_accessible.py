"""axe-core looks at every page, light and dark, on a narrow and on a wide screen; and what paper gets."""

import base64
import json
import re
import sys
import zlib
from pathlib import Path

import pytest

from swe_rl.logger.jsonl import StepLog, read_jsonl
from swe_rl.report.page import write_report
from swe_rl.view.server import ViewServer
from tests.report.test_report_trace import program
from tests.support.browser import CHROMIUM, browser

AXE = Path(sys.prefix, "lib", "node_modules", "axe-core", "axe.min.js")  # where .ci/run has npm install it
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]
SCREENS = [("light", 420), ("dark", 1400)]  # a page's colours are the same on each width, and its parts in each scheme
FOUND = """axe.run({ resultTypes: ["violations"], preload: false, elementRef: false })
  .then(({ violations }) => violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`)))"""


@pytest.fixture
def pages(folder, traced):
    """Rests of addresses with what has to be there; of a run with lanes, a long patch and long output."""
    record = dict(traced, patch="\n".join([traced["patch"] or "+x"] * 40), cheating={"peek": 2}, error="gone")
    record["turns"] = [turn | {"observation": "line\n" * 200, "exit_code": 1} for turn in traced["turns"]]
    with StepLog(folder) as log:
        log.append_trajectories(2, [record])
        for step in (1, 2):
            log.append_programs(step, "program", [program(step, sample) for sample in range(80)])
    write_report(folder)
    one = f"&set=step_000002&trajectory={traced['trajectory_id']}"
    run = "#run=train%2Ffirst"
    return {
        "": "figure svg",
        run: "table.steps tbody tr",
        f"{run}&list=1&instance=package-02": ".list-of-all tbody tr",
        f"{run}&list=1&set=step_000002&text=nowhere": ".reason",
        f"{run}{one}": ".turn",
        **{f"{run}{one}&tokens=0&by={by}": ".tokens .token" for by in ("", "advantage", "version")},
        f"{run}&set=step_000002&group={traced['group_id']}": ".side-by-side section",
    }


@pytest.fixture
def axe():
    if not AXE.is_file():
        pytest.skip("needs axe-core, which .ci/run installs into .venv by npm")
    return AXE.read_text(encoding="utf-8")


async def test_axe_finds_nothing(runs, folder, pages, axe, chromium_address):
    found = {}
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        await page.open(server.url)
        await page.until("document.querySelector('.runs tbody tr') !== null")
        addresses = {f"http://127.0.0.1:{server.port}/{rest}": shown for rest, shown in pages.items()}
        for address, shown in {**addresses, folder.report_html.as_uri(): ".viewer .turn"}.items():
            await page.open("about:blank")
            await page.open(address)
            await page.until(f"document.querySelector({json.dumps(shown)}) !== null")
            await page.js(f"{axe}; 0")
            for scheme, width in SCREENS:
                await page.media(scheme)
                await page.width(width)
                await page.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                if violations := await page.js(FOUND):
                    found[address, scheme, width] = violations
        assert page.errors == []
    assert found == {}


@pytest.fixture
def long_run(folder, pages):
    """More steps than the page opens the table of."""
    with StepLog(folder) as log:
        for step in range(4, 50):
            log.append({"step": step, "reward_mean": step / 100})
    write_report(folder)
    return read_jsonl(folder.steps_jsonl)


async def test_paper_is_white_and_shows_all(runs, folder, long_run, chromium_address):
    """Long tables also where they are closed, all lanes, every instance; nothing that is only there to be clicked."""
    assert len(long_run) == 49
    async with ViewServer(runs) as server, browser(chromium_address) as page:
        await page.open(server.url)
        await page.until("document.querySelector('.runs tbody tr') !== null")
        for address in (f"http://127.0.0.1:{server.port}/#run=train%2Ffirst", folder.report_html.as_uri()):
            await page.open("about:blank")
            await page.open(address)
            await page.until("document.querySelector('table.steps') !== null")
            await page.media("dark")
            assert await page.js("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
            await page.media("dark", "print")
            assert await page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert await page.js("getComputedStyle(document.body).color") == "rgb(27, 35, 48)"
            cut = "[...document.querySelectorAll('.scroll, .lanes, .answer, .diff')].filter((one) => "
            cut += "one.offsetParent && one.scrollHeight > one.clientHeight + 1).map((one) => one.className)"
            assert await page.js(cut) == []
            sticky = "[...document.querySelectorAll('*')].filter((one) => "
            sticky += "/sticky|fixed/.test(getComputedStyle(one).position) && one.offsetParent).length"
            assert await page.js(sticky) == 0
            assert await page.js("document.querySelector('.controls')?.offsetParent ?? null") is None
            await page.media("dark", "")
            pdf = base64.b64decode((await page.send("Page.printToPDF", printBackground=True))["data"])
            assert pages_of(pdf) >= 3, "the closed table of 49 steps is on paper, too"
            assert await page.js("document.querySelector('details:has(table.steps)').open") is False
        assert page.errors == []


def pages_of(pdf: bytes) -> int:
    parts = [pdf, *(inflated(part) for part in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL))]
    return sum(len(re.findall(rb"/Type\s*/Page\b", part)) for part in parts)


def inflated(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
