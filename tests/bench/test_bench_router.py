import json
import shlex
import socket
import sys
from dataclasses import asdict

import pytest

from bench import router_bench, start_engines
from bench.agent_load import load_options
from bench.arms import ArmError, router_config
from bench.load import make_load
from bench.peers import PeerError
from bench.router_bench import RouterBench, ServersBusyError, parse, table
from tests.support.fake_vllm.server import FakeSettings, FakeVllm

FAKE = FakeSettings(max_model_len=16384, vocab_size=16384, kv_capacity_tokens=3200)
SMALL = ["--programs", "6", "--scale", "0.5", "--token-scale", "0.03", "--tool-scale", "0.002"]


def bench_of(model_dir, urls, *more):
    flags = [part for url in urls for part in ("--url", url)]
    arguments = parse(["--model-dir", str(model_dir), *flags, *SMALL, *more])
    return RouterBench(arguments, make_load(load_options(arguments)))


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["default", "cap:2", "tr", "tr_atw01"])
async def test_an_arm_on_two_servers(model_dir, arm):
    async with FakeVllm(FAKE) as one, FakeVllm(FAKE) as other:
        found = await bench_of(model_dir, [one.url, other.url]).run_arm(arm)
        resets = [path for fake in (one, other) for path, _ in fake.requests if path == "/reset_prefix_cache"]
    assert found["complete"] and not found["num_errors"]
    assert not found["odd_prompts"] and not found["short_replies"]
    assert 0.3 < found["cached_share"] < 1.0
    assert len(resets) == 2
    assert found["router"] == asdict(router_config(arm))
    assert found["spent_s"].keys() == {"queue", "prefill", "decode"}
    assert sum(found["sampled_tokens_total"]) == found["sampled_tokens"] + 2 * 8  # and what a probe samples
    json.dumps(found)


async def test_a_server_that_keeps_its_cache_is_refused(model_dir):
    async with FakeVllm(FakeSettings(dev_mode=False)) as fake:
        with pytest.raises(ServersBusyError, match="VLLM_SERVER_DEV_MODE"):
            await bench_of(model_dir, [fake.url]).run_arm("default")


@pytest.mark.slow
async def test_lines_and_table(model_dir, tmp_path, capsys):
    out = tmp_path / "arms.jsonl"
    async with FakeVllm(FAKE) as fake:
        words = ["--model-dir", str(model_dir), "--url", fake.url, "--out", str(out), "--repeats", "2", *SMALL]
        await router_bench._main(parse([*words, "--arms", "default tr"]))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["repeat"], line["arm"]) for line in lines] == [(0, "default"), (0, "tr"), (1, "tr"), (1, "default")]
    assert len({line["workload"] for line in lines}) == 1
    shown = capsys.readouterr().out
    assert shown.splitlines()[-2].startswith("default") and "1.000" in shown.splitlines()[-2]


def test_the_table_marks_what_was_cut():
    line = {"arm": "tr", "tokens_per_s": 0.0, "makespan_s": 1.0, "cached_share": 0.5, "turn_p50_s": 1.0}
    line |= {"turn_p99_s": 2.0, "most_ended_s": 1.0, "num_errors": 3, "complete": False}
    assert table([line]).endswith("(cut)")


def test_urls_of_the_command():
    assert start_engines.with_urls(["x", "--url", "{urls}", "y"], ["a", "b"]) == ["x", "--url", "a", "--url", "b", "y"]


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
async def test_engines_live_as_long_as_the_command(model_dir, tmp_path, monkeypatch, status):
    monkeypatch.setenv("SWE_RL_VLLM_COMMAND", f"{shlex.quote(sys.executable)} -m tests.support.fake_vllm.server")
    told = tmp_path / "urls"
    script = (
        "import pathlib, sys, urllib.request as u\n"
        "for url in sys.argv[3::2]: assert u.urlopen(url + '/health').status == 200\n"
        "pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[3::2]))\n"
        f"sys.exit({status})"
    )
    words = ["--cpu", "--model-dir", str(model_dir), "--engines", "2", "--first-port", "0", "--logs", str(tmp_path)]
    words += ["--", sys.executable, "-c", script, str(told), "--url", "{urls}"]
    assert await start_engines._main(start_engines.parse(words)) == status
    urls = told.read_text().split()
    assert len(urls) == 2
    for url in urls:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


def test_the_command_line_of_a_server(model_dir):
    arguments = start_engines.parse(["--model-dir", "/m", "--devices", "4,6"])
    words = start_engines.server_arguments(arguments, ["vllm", "serve"], 1, 8002)
    assert words[:3] == ("vllm", "serve", "/m")
    for flag, value in (("--port", "8002"), ("--num-gpu-blocks-override", "7500"), ("--load-format", "dummy")):
        assert words[words.index(flag) + 1] == value
    told = start_engines.environment(arguments, 1)
    assert (told["CUDA_VISIBLE_DEVICES"], told["VLLM_SERVER_DEV_MODE"]) == ("6", "1")


async def test_an_unknown_arm_is_told_before_any_runs(model_dir, tmp_path):
    words = ["--model-dir", str(model_dir), "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "x"), *SMALL]
    with pytest.raises(ArmError, match="nobody"):
        await router_bench._main(parse([*words, "--arms", "default nobody"]))


async def test_a_peer_that_is_not_installed(model_dir, tmp_path):
    async with FakeVllm(FAKE) as fake:
        with pytest.raises(PeerError, match="not there"):
            await bench_of(model_dir, [fake.url], "--peers", str(tmp_path)).run_arm("vllm_router")
