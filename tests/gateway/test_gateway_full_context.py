"""A full context, in the words by which programs of others know one: each package is asked itself."""

import pytest

from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.gateway.dialects.messages import Messages
from swe_rl.gateway.errors import ApiError, context_overflow, overflow_figures

FULL = {"role": "user", "content": "a b " * 3000}


def test_the_figures_are_known_of_an_error_that_another_process_wrote():
    error = context_overflow(893, 512, "rollout.max_prompt_tokens")
    far = ApiError(error.status, error.message, kind=error.kind, code=error.code, param=error.param)
    assert overflow_figures(far) == (893, 512)
    assert Messages().error(far)["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 893 tokens > 512 maximum",
    }
    assert overflow_figures(ApiError(400, error.message)) is None


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_litellm_knows_it(serve, says, monkeypatch, stream):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    async with serve(ScriptedEngine(says("ok"))) as (_, _, url):
        for model, base in (("openai/tiny", url), ("anthropic/tiny", url.removesuffix("/v1"))):
            with pytest.raises(litellm.ContextWindowExceededError):
                await litellm.acompletion(
                    model, messages=[FULL], api_base=base, api_key="none", num_retries=0, max_tokens=9, stream=stream
                )


@pytest.mark.slow
async def test_litellm_takes_a_slow_stream(serve, says, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    async with serve(ScriptedEngine(says("slow and sure"), token_delay_s=0.03), heartbeat_s=0.03) as (_, _, url):
        for model, base in (("openai/tiny", url), ("anthropic/tiny", url.removesuffix("/v1"))):
            options = {"api_base": base, "api_key": "none", "num_retries": 0, "max_tokens": 90}
            stream = await litellm.acompletion(model, messages=[FULL | {"content": "x"}], stream=True, **options)
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "slow and sure"


@pytest.mark.slow
async def test_verifiers_knows_it(serve, says):
    errors = pytest.importorskip("verifiers.v1.errors")
    openai = pytest.importorskip("openai")
    async with (
        serve(ScriptedEngine(says("ok"))) as (_, _, url),
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=[FULL])
    assert isinstance(errors.model_error(refused.value), errors.OverlongPromptError)
