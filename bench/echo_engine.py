"""An engine that costs as little as Python allows: reads a request, answers with ready-made bytes.

    python -m bench.echo_engine --port 8200

With --token-ms it takes that long for each token, and --max-num-seqs requests at a time: then it, and not what stands
in front of it, is what bounds throughput, as with a real engine.

It answers /v1/chat/completions (for clients that come directly, or through another project's router) and
/v1/completions with token ids (for this project's gateway), with as many tokens as `max_tokens` says.

Invariants:
- The same work for both: a body is read whole and searched for `max_tokens` in its first bytes, never parsed.
"""

import argparse
import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache

import orjson
from aiohttp import web

MODEL = "policy"
FIRST_ID = 16  # of the words that are answered
_MAX_MODEL_LEN = 131072
_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_HEAD_BYTES = 4096
_METRICS = (
    'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.0\nvllm:num_preemptions_total{engine="0"} 0.0\n'
    'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000000"} 1.0\n'
    "process_start_time_seconds 1.0\n"
)

Handler = Callable[[web.Request], Awaitable[web.Response]]


def words(tokens: int) -> str:
    """What the ids of a reply mean in the vocabulary of bench/words.py."""
    return " ".join(f"w{FIRST_ID - 7 + number}" for number in range(tokens))


@lru_cache(64)
def _completion(tokens: int) -> bytes:
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": "length",
        "token_ids": list(range(FIRST_ID, FIRST_ID + tokens)),
        "logprobs": {"token_logprobs": [0.0] * tokens, "tokens": [""] * tokens, "top_logprobs": None},
    }
    times = {"queue_time_ms": 0.0, "time_to_first_token_ms": 0.0, "generation_time_ms": 0.0}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 0}}
    return orjson.dumps({"object": "text_completion", "choices": [choice], "usage": usage, "metrics": times})


@lru_cache(64)
def _chat(tokens: int) -> bytes:
    message = {"role": "assistant", "content": words(tokens)}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
    head = {"id": "chatcmpl-echo", "object": "chat.completion", "created": 1, "model": MODEL}
    return orjson.dumps({**head, "choices": [choice], "usage": usage})


class _Pace:
    """The time that tokens take."""

    def __init__(self, token_s: float, max_num_seqs: int) -> None:
        self._token_s = token_s
        self._places = asyncio.Semaphore(max_num_seqs) if token_s else contextlib.nullcontext()

    async def sample(self, tokens: int) -> None:
        async with self._places:
            if self._token_s:
                await asyncio.sleep(tokens * self._token_s)


def _answering(reply: Callable[[int], bytes], pace: _Pace) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        found = _MAX_TOKENS.search(await request.read(), 0, _HEAD_BYTES)
        tokens = int(found[1]) if found else 16
        await pace.sample(tokens)
        return web.Response(body=reply(tokens), content_type="application/json")

    return handle


def _fixed(payload: object) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(payload), content_type="application/json")

    return handle


async def _metrics(_: web.Request) -> web.Response:
    return web.Response(text=_METRICS)


def application(token_s: float = 0.0, max_num_seqs: int = 256) -> web.Application:
    pace = _Pace(token_s, max_num_seqs)
    app = web.Application(client_max_size=2**28)
    card = {"id": MODEL, "object": "model", "root": MODEL, "max_model_len": _MAX_MODEL_LEN}
    app.router.add_get("/health", _fixed({}))
    app.router.add_get("/version", _fixed({"version": "0.32.0"}))
    app.router.add_get("/v1/models", _fixed({"object": "list", "data": [card]}))
    app.router.add_get("/metrics", _metrics)
    app.router.add_post("/v1/completions", _answering(_completion, pace))
    app.router.add_post("/v1/chat/completions", _answering(_chat, pace))
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine of ready-made answers.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-ms", type=float, default=0.0)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    arguments = parser.parse_args()
    app = application(arguments.token_ms / 1000.0, arguments.max_num_seqs)
    web.run_app(app, host="127.0.0.1", port=arguments.port, access_log=None, print=None, backlog=4096)


if __name__ == "__main__":
    main()
