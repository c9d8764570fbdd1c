"""The probe: what servers of different makes can do, and which are refused."""

import asyncio
import contextlib
import json
import math

import pytest

from swe_rl.config.choices import LogprobsMode
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.server import features as http_features
from swe_rl.engine.server.client import HttpClient, SilentError
from swe_rl.engine.server.features import Needs, Patience, ServerRefusedError, probe_server
from swe_rl.engine.server.wire import TokenIn
from swe_rl.facts.logprobs import ASKED_TOKENS, ProbeAnswer, find_mode
from tests.support.fake_vllm.server import FakeSettings, FakeVllm, Fault


async def features_of(*, needs=None, key=None, faults=(), patience=None, **settings):
    async with FakeVllm(FakeSettings(**settings)) as fake:
        fake.fail_next(*faults)
        client = HttpClient(fake.url, api_key=key)
        await client.open()
        try:
            return await probe_server(client, needs or Needs("policy", 1024), patience)
        finally:
            await client.close()


async def test_a_full_server():
    found = await features_of()
    assert found.token_in is TokenIn.completions and found.timings and found.cached_tokens and found.metrics
    assert found.pause and found.reload and found.weight_transfer and found.version_stamp and found.sleep
    assert found.logprobs is LogprobsMode.processed and not found.render
    assert str(found) == (
        "vLLM 0.32.0 serves policy, 4096 tokens, ids through /v1/completions, processed log-probabilities; timings, "
        "cached_tokens, metrics, pause, reload, weight_transfer, version_stamp, sleep"
    )


async def test_without_timings_the_leaner_way_is_taken():
    found = await features_of(timings=False, weight_spans=True)
    assert found.token_in is TokenIn.generate and found.weight_spans and not found.timings


@pytest.mark.parametrize(("generate", "completions"), [(True, False), (False, True)])
async def test_either_way_works_alone(generate, completions):
    found = await features_of(generate=generate, completions=completions, timings=False)
    assert found.token_in is (TokenIn.generate if generate else TokenIn.completions)


async def test_a_server_that_does_not_tell_its_experts_is_refused_by_name():
    needs = Needs("policy", 1024, num_experts=4)
    assert (await features_of(needs=needs, routes=True)).token_in is TokenIn.completions
    with pytest.raises(ServerRefusedError, match="trainer.routing_replay needs: start it with --enable-return-routed"):
        await features_of(needs=needs)
    with pytest.raises(ServerRefusedError, match="of no use here: it tells the same expert twice for one token"):
        await features_of(needs=needs, routes=True, experts=(2, 2, 1))


async def test_production_servers_have_no_control():
    found = await features_of(dev_mode=False, metrics=False)
    assert not (found.pause or found.reload or found.weight_transfer or found.metrics)


@pytest.mark.parametrize("version", ["0.26.0", "0.29.1.dev3+gabc", "0.33.0", "0.32.0+cpu"])
async def test_supported_versions(version):
    assert (await features_of(version=version)).version == version


@pytest.mark.parametrize("version", ["0.25.2", "0.34.0", "1.0.0"])
async def test_other_versions_are_refused(version):
    with pytest.raises(ServerRefusedError, match=rf"runs vLLM {version}; supported are 0\.26 to 0\.33"):
        await features_of(version=version)


async def test_no_vllm_server():
    with pytest.raises(ServerRefusedError, match="no vLLM server"):
        await features_of(version="sglang")


async def test_another_model():
    with pytest.raises(ServerRefusedError, match=r"does not serve tiny, only policy: set engine\.served_model"):
        await features_of(needs=Needs("tiny", 1024))


async def test_any_model_when_none_is_named():
    assert (await features_of(needs=Needs(None, 1024), model="whatever")).model == "whatever"


async def test_sequences_too_short():
    with pytest.raises(ServerRefusedError, match=r"of 512 tokens, fewer than engine\.max_model_len=1024"):
        await features_of(max_model_len=512)


WHOLE, PROCESSED, RAW = LogprobsMode.whole, LogprobsMode.processed, LogprobsMode.raw


@pytest.mark.parametrize("mode", LogprobsMode)
@pytest.mark.parametrize("generate", [False, True])
async def test_over_which_tokens_logprobs_are_is_found_out(mode, generate):
    needs = Needs("policy", 1024, temperature=0.8)
    found = await features_of(needs=needs, logprobs=mode.value, generate=generate, completions=not generate)
    assert found.logprobs is mode


async def test_at_temperature_1_raw_logprobs_are_those_of_the_whole_vocabulary():
    needs = Needs("policy", 1024, accepted=frozenset({WHOLE, RAW}))
    for mode in ("whole", "raw"):
        assert (await features_of(needs=needs, logprobs=mode)).logprobs is RAW


@pytest.mark.parametrize(
    ("needs", "mode", "way_out"),
    [
        (Needs("policy", 1024, frozenset({WHOLE, PROCESSED}), 0.8), "raw", "--logprobs-mode processed_logprobs"),
        (
            Needs("policy", 1024, frozenset({WHOLE, PROCESSED}), 0.8, True),
            "raw",
            r"at 0\.8: sample with rollout.temp",
        ),
        (
            Needs("policy", 1024, frozenset({WHOLE, RAW}), 1.0, True),
            "processed",
            "--logprobs-mode raw_logprobs, or sam",
        ),
        (Needs("policy", 1024, frozenset({WHOLE}), 0.8, True), "processed", r"token: sample with rollout\.top_p=1\.0"),
    ],
)
async def test_logprobs_that_cannot_be_compared_are_refused_with_a_way_out(needs, mode, way_out):
    with pytest.raises(ServerRefusedError, match=way_out):
        await features_of(needs=needs, logprobs=mode)


async def test_logprobs_after_truncation_are_warned_of_where_they_are_accepted():
    for truncated, lines in ((True, 1), (False, 0)):
        said = []
        needs = Needs("policy", 1024, truncated=truncated)
        await features_of(needs=needs, patience=Patience(say=said.append), logprobs="processed")
        assert len(said) == lines and all("logprob_diff_* count what truncation left out" in line for line in said)


async def test_a_model_that_is_sure_of_its_first_answers_is_asked_about_others():
    """Log-probabilities of 0 say nothing about truncation; a refusal needs more."""

    async def found(sure_of):
        async with FakeVllm(FakeSettings(logprobs="raw")) as fake:
            unsure = fake.model.logprob
            fake.model = SureModel(fake.model, sure_of, unsure)
            client = HttpClient(fake.url)
            await client.open()
            try:
                return (await probe_server(client, Needs("policy", 1024, frozenset({WHOLE, RAW}), 1.0, True))).logprobs
            finally:
                await client.close()

    assert await found(range(8, 16)) is RAW
    with pytest.raises(ServerRefusedError, match="that truncation kept"):
        await found(range(100))


class SureModel:
    """A fake one whose first probes, by number of request, get tokens of probability 1."""

    def __init__(self, model, sure_of, unsure):
        self._model, self._sure_of, self._unsure, self._asked = model, sure_of, unsure, 7

    def __getattr__(self, name):
        return getattr(self._model, name)

    def logprob(self, *where):
        self._asked += 1
        return 0.0 if self._asked in self._sure_of else self._unsure(*where)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
async def test_the_embedded_engine_reports_what_a_server_of_the_whole_vocabulary_does(start_engine, temperature):
    """Asked the same, as a run's own gateway passes it on, it cannot be told apart from one."""
    engine = await start_engine()
    accepted = {WHOLE, RAW} if temperature == 1.0 else {WHOLE}
    asking = find_mode(accepted, temperature)
    question = next(asking)
    with pytest.raises(StopIteration) as end:
        while True:
            params = SamplingParams(ASKED_TOKENS, temperature=question.temperature, top_k=1, seed=1)
            done = await engine.generate(question.prompt_ids, params, request_id="probe")
            question = asking.send(ProbeAnswer(done.token_ids, done.logprobs))
    needs = Needs("policy", 1024, frozenset(accepted), temperature, truncated=True)
    assert end.value.value is (await features_of(needs=needs, logprobs="whole")).logprobs


@pytest.mark.parametrize(
    ("logprob", "expected"),
    [(0.0, True), (-1e-7, True), (-math.log(2), True), (-math.log(3) + 5e-5, True), (-0.5, False), (-9.0, False)],
)
def test_ties_of_the_likeliest_tokens_are_no_raw_logprobs(logprob, expected):
    answer = ProbeAnswer([5], [logprob])
    asking = find_mode(LogprobsMode, 1.0)
    next(asking)
    with pytest.raises(StopIteration) as found:
        asking.send(answer)
    assert found.value.value is (PROCESSED if expected else RAW)


async def test_no_token_ids():
    with pytest.raises(ServerRefusedError, match="does not take token ids and return token ids"):
        await features_of(token_ids=False)


async def test_newer_servers_switch_generate_off_with_403():
    with pytest.raises(ServerRefusedError, match="403: disabled"):
        fault = Fault(status=403, body='{"error": {"message": "disabled"}}')
        await features_of(completions=False, faults=[fault])


async def test_a_wrong_key():
    with pytest.raises(ServerRefusedError, match="VLLM_API_KEY"):
        await features_of(api_key="right", key="wrong")
    assert (await features_of(api_key="right", key="right")).pause


async def test_nothing_there(monkeypatch):
    monkeypatch.setattr("swe_rl.engine.server.client._REFUSED_PAUSE_S", 0.01)
    client = HttpClient("http://127.0.0.1:9")
    await client.open()
    with pytest.raises(EngineError, match="cannot be reached"):
        await probe_server(client, Needs(None, 1))
    await client.close()


def test_patience_of_a_person():
    """It says so after 5 s and gives up after 30 s, unless told otherwise."""
    assert (http_features.SILENT_S, Patience().limit_s) == (5.0, 30.0)


@pytest.mark.parametrize("answered", [0, 1, 2])
async def test_a_server_that_accepts_and_never_answers(answered, monkeypatch):
    """From the beginning, after its version, and at the first completion."""
    monkeypatch.setattr(http_features, "SILENT_S", 0.05)
    paths = ["/version", "/v1/models", "/v1/completions"]
    bodies = {"/version": b'{"version": "0.32.0"}', "/v1/models": b'{"data": [{"id": "m", "max_model_len": 9}]}'}

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
                if path in paths[answered:]:
                    await reader.read()  # until the client gives up
                body = bodies[path]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    url, said = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", []
    client = HttpClient(url)
    await client.open()
    try:
        with pytest.raises(SilentError, match=f"^{url}{paths[answered]} did not answer within 0.2 s$"):
            await probe_server(client, Needs(None, 1), Patience(0.2, said.append))
    finally:
        await client.close()
        server.close()
    assert said == [f"{url}{paths[answered]} has not answered for 0.05 s; it is given up after 0.2 s"]


async def test_numbers_that_no_model_gives_are_no_matter_of_the_way():
    """A NaN, as vLLM writes it, or an id beyond the vocabulary: no proxy removed anything."""
    nan = {"index": 0, "finish_reason": "length", "token_ids": [7], "logprobs": {"token_logprobs": [-9999.0]}}
    with pytest.raises(ServerRefusedError, match=r"no sound model gives: .*token 0 is -9999\.0.*its log") as refused:
        await features_of(faults=[Fault(status=200, body=json.dumps({"choices": [nan]}))])
    assert "proxy" not in str(refused.value)
    with pytest.raises(ServerRefusedError, match=r"outside 0 \.\. 9 \(model\.vocab_size\)"):
        await features_of(needs=Needs("policy", 1024, vocab_size=10))


async def test_a_server_that_fails_is_not_taken_for_a_proxy():
    broken = Fault(status=500, body="Out of range float values are not JSON compliant")
    with pytest.raises(ServerRefusedError, match="500: Out of range float.*its log says why") as refused:
        await features_of(generate=False, faults=[broken])
    assert "proxy" not in str(refused.value)
