"""launchers/grafana.json draws what the gateway's /metrics has: each metric, by names and labels that are there."""

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from swe_rl.engine.scripted import ScriptedEngine

DASHBOARD = json.loads((Path(__file__).parents[2] / "launchers" / "grafana.json").read_text())
QUERIES = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
LEFT_OUT = r".*_created"  # when a counter began: the client library's own


async def asked(url, **more):
    sent = {"model": "tiny", "messages": [{"role": "user", "content": "Fix the bug."}], "program_id": "p", **more}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/chat/completions", json=sent) as response:
        return response.status


@pytest.fixture
async def scraped(serve, says):
    """The type of each sample's metric and the sample's labels, by the sample's name, after calls of each kind."""
    async with serve(ScriptedEngine(says("ok"))) as (_, store, url), aiohttp.ClientSession() as http:
        assert [await asked(url), await asked(url), await asked(url, n=2)] == [200, 200, 400]
        await asyncio.wait_for(store.flush(), 10)
        async with http.get(url.replace("/v1", "/metrics")) as response:
            families = list(text_string_to_metric_families(await response.text()))
    return {sample.name: (family.type, set(sample.labels)) for family in families for sample in family.samples}


def names_in(query):
    return set(re.findall(r"swe_rl_\w+", query))


async def test_what_is_drawn_is_there_and_what_is_there_is_drawn(scraped):
    drawn = set().union(*(names_in(target["expr"]) for _, target in QUERIES))
    assert drawn <= set(scraped)
    assert {name for name in scraped if not re.fullmatch(LEFT_OUT, name)} == drawn


async def test_only_what_counts_has_a_rate_and_labels_are_those_of_the_metric(scraped):
    for title, target in QUERIES:
        query = target["expr"]
        rated = set(re.findall(r"rate\((swe_rl_\w+)", query))
        counting = {name for name in names_in(query) if scraped[name][0] in ("counter", "histogram")}
        assert rated == counting, title
        labels = set.intersection(*(scraped[name][1] for name in names_in(query)))
        wanted = set(re.findall(r"by \((\w+)\)", query)) | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert wanted <= labels, title


def test_its_form():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
    squares = [(x + i, y + k) for x, y, w, h in places for i in range(w) for k in range(h)]
    assert len(set(squares)) == len(squares) and all(x < 24 for x, _ in squares)
    known = {f"${item['name']}" for item in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    used = set(re.findall(r"\$[a-z]\w*", text)) | {f"${name}" for name in re.findall(r"\$\{(\w+)\}", text)}
    assert used == known
    for _, target in QUERIES:
        query = target["expr"]
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")


def test_the_query_of_the_variable_names_a_drawn_metric():
    (query,) = (item["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query")
    assert names_in(query) <= set().union(*(names_in(target["expr"]) for _, target in QUERIES))
