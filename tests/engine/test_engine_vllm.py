"""Servers that are started, watched, restarted and ended: real processes, of the fake server."""

import asyncio
import json
import os
import signal
import sys

import psutil
import pytest
import torch

from swe_rl.config.choices import EngineKind, LoraServing
from swe_rl.config.schema import Config, EngineConfig, LayoutConfig, TrainerConfig
from swe_rl.engine.engine import EngineError, EngineState, SamplingParams
from swe_rl.engine.make import EngineFolders, engine_scratch, make_engines, start_engines
from swe_rl.engine.vllm.arguments import VllmOptions
from swe_rl.errors import UserError
from swe_rl.files.disk import DiskError
from tests.support import dying_server
from tests.support.waiting import alive, until

COMMAND = (sys.executable, "-m", "tests.support.fake_vllm.server")
PROMPT = list(range(1, 50))
TRITON = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."


@pytest.fixture
async def make(tmp_path):
    """make(engines=1, options={...}, **fake settings) -> (engines, what was said)"""
    made = []
    with engine_scratch(tmp_path / "scratch") as scratch:

        def build(engines=1, options=None, environ=None, trainer=None, restarts=None, record=None, **fake):
            layout = LayoutConfig(engines=engines)
            config = Config(
                layout=layout,
                trainer=trainer or TrainerConfig(),
                engine=EngineConfig(kind=EngineKind.vllm, max_model_len=512, max_num_seqs=8, enforce_eager=False),
            )
            said = []
            found = make_engines(
                config,
                EngineFolders(tmp_path / "logs", scratch, scratch, tmp_path / "cache"),
                model=None,
                pad_token_id=0,
                say=said.append,
                environ={**os.environ, "FAKE_VLLM": json.dumps(fake), **(environ or {})},
                options=VllmOptions(**{"command": COMMAND, "stop_timeout_s": 2.0, **(options or {})}),
                record=record,
                restarts=restarts,
            )
            made.extend(found)
            return found, said

        yield build
        for engine in made:
            await engine.close()


def tree(engine):
    """The server's processes: the guard and all below it."""
    guard = psutil.Process(engine.server.pid)
    return [guard, *guard.children(recursive=True)]


def dead(processes):
    return not any(alive(one) for one in processes)


async def test_start_serve_close(make, tmp_path):
    engines, said = make(engines=2, environ={"VLLM_API_KEY": "sk-very-secret"})
    await start_engines(engines)
    arguments = [word for engine in engines for process in tree(engine) for word in process.cmdline()]
    assert not any("secret" in word for word in [*arguments, *said]), "the key is in the environment only"
    done = await asyncio.gather(
        *(engine.generate(PROMPT, SamplingParams(3, seed=1), request_id="a") for engine in engines)
    )
    assert done[0].token_ids == done[1].token_ids and engines[0].state is EngineState.up
    assert [engine.name for engine in engines] == ["engine0", "engine1"]
    assert engines[0].stats().kv_capacity_tokens == 65536
    assert (tmp_path / "logs" / "engine1.log").read_text().endswith("startup complete.\n")
    assert any("engine0 is up after" in line and "vLLM 0.32.0 serves tiny" in line for line in said)
    running = [one for engine in engines for one in tree(engine)]
    await asyncio.gather(*(engine.close() for engine in engines))
    assert dead(running)
    with pytest.raises(EngineError, match="is closed"):
        await engines[0].generate(PROMPT, SamplingParams(1), request_id="a")


async def test_a_killed_server_is_started_again(make):
    (engine,), said = make(token_delay_s=0.01)
    changes = []
    engine.on_change = changes.append
    await engine.start()
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(400), request_id="a"))
    await until(lambda: not asking.done() and engine.stats().running == 1)
    before = tree(engine)
    os.kill(before[1].pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="was ended by SIGKILL from outside"):
        await asyncio.wait_for(asking, 5)
    assert engine.state is not EngineState.up and engine.stats().running == 0
    done = await asyncio.wait_for(engine.generate(PROMPT, SamplingParams(2), request_id="b"), 20)
    assert (
        len(done.token_ids) == 2
        and engine.state is EngineState.up
        and engine.restarts == 1
        and changes == [False, True]
    )
    assert dead(before) and any("restart 1 of 3" in line for line in said)
    assert engine.stats().sampled_tokens_total == 2


async def test_a_killed_guard_leaves_nothing(make):
    (engine,), _ = make(workers=2)
    await engine.start()
    before = tree(engine)
    assert len(before) == 3
    os.kill(before[0].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    await until(lambda: dead(before))
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids
    kept = tree(engine)
    os.kill(kept[0].pid, signal.SIGKILL)
    await engine.close()
    await until(lambda: dead(kept))


@pytest.mark.parametrize(
    ("failures", "restarts"),
    [
        pytest.param([EngineError] * 2, 3, marks=pytest.mark.slow),
        ([EngineError] * 3, 3),
        ([UserError], 1),
    ],
)
async def test_a_restart_that_fails_is_followed_by_the_next(make, failures, restarts):
    (engine,), said = make()
    await engine.start()
    launch, left = engine._launch, list(failures)

    async def failing(model_path):
        if left:
            raise left.pop()("no memory")
        await launch(model_path)

    engine._launch = failing
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    up = len(failures) == 2
    await until(
        lambda: engine.restarts == restarts and engine.state is (EngineState.up if up else EngineState.gone), 20
    )
    assert any("the restart failed: no memory; restart 2 of 3" in line for line in said) is (restarts > 1)
    assert up or str(engine.why_lost).endswith("the restart failed: no memory")


@pytest.fixture
def deaths(tmp_path):
    """deaths(*names) -> the command of a server of which so many next starts die (see `dying_server`)."""
    folder = tmp_path / "deaths"
    folder.mkdir()

    def plan(*names):
        for number, name in enumerate(names):
            (folder / f"{number}{name}").touch()
        return {"command": (sys.executable, dying_server.__file__, str(folder))}

    return plan


@pytest.mark.parametrize("how", [pytest.param("start", marks=pytest.mark.slow), "probe"])
async def test_a_first_start_that_dies_is_not_tried_again(make, deaths, how):
    """It would die once more: it has the same settings."""
    (engine,), said = make(options=deaths(how))
    with pytest.raises(EngineError, match=f"ended with status 3: .*CUDA out of memory .0{how}"):
        await engine.start()
    assert sum("starts on" in line for line in said) == 1


@pytest.mark.parametrize("how", [pytest.param("start", marks=pytest.mark.slow), "probe"])
async def test_a_restart_that_dies_before_it_is_up_is_followed_by_the_next(make, deaths, how):
    (engine,), said = make(options=deaths())
    await engine.start()
    deaths(how, how)
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 3 and engine.state is EngineState.up, 30)
    assert sum("CUDA out of memory" in line for line in said) == 2


@pytest.mark.slow
async def test_engines_that_are_made_anew_count_their_deaths_on(make, deaths):
    """As after a lost rank of the trainer: once a server was up, one that dies at its start is a fault like others."""
    restarts, events = {}, []
    (engine,), _ = make(restarts=restarts, options=deaths())
    await start_engines([engine])
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    await engine.close()
    record = lambda event, _: events.append(event)  # noqa: E731
    (engine,), said = make(restarts=restarts, record=record, options=deaths("start", "probe"))
    await start_engines([engine])
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids
    assert engine.restarts == 3 and events == ["engine_lost", "engine_back"]
    assert any("(0start)" in line and "restart 2 of 3" in line for line in said)
    assert any("(1probe)" in line and "restart 3 of 3" in line for line in said)
    await engine.close()
    (engine,), said = make(restarts=restarts, record=record, options=deaths("start"))
    with pytest.raises(EngineError, match=r"\(0start\).*it was restarted 3 times already"):
        await start_engines([engine])
    assert sum("starts on" in line for line in said) == 1 and not psutil.pid_exists(engine.server.pid)


async def test_an_engine_that_does_not_come_up_again_leaves_the_others(make, deaths):
    restarts = {"engine0": 3, "engine1": 3}
    engines, _ = make(engines=2, restarts=restarts, options=deaths("start"))
    await start_engines(engines)
    assert sorted(engine.state.name for engine in engines) == ["gone", "up"]
    up, gone = sorted(engines, key=lambda engine: engine.state is EngineState.gone)
    assert (await up.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids
    with pytest.raises(EngineError, match="CUDA out of memory"):
        await gone.generate(PROMPT, SamplingParams(1), request_id="a")


async def test_no_compiler_is_answered_with_eager_mode(make):
    (engine,), said = make(start_log=TRITON, die_at_start=1, die_unless_eager=True)
    await engine.start()
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).token_ids
    assert "--enforce-eager" in tree(engine)[1].cmdline()
    line = next(line for line in said if "no compiler" in line)
    assert "engine.enforce_eager=true" in line and "Failed to find C compiler" in line


async def test_no_compiler_for_eager_mode_either(make):
    (engine,), said = make(start_log=TRITON, die_at_start=1)
    with pytest.raises(EngineError, match=r"status 1: RuntimeError: Failed to find C compiler.*hardware\.modules"):
        await engine.start()
    assert sum("starts on" in line for line in said) == 2


async def test_a_server_that_dies_at_the_start_says_why(make, tmp_path):
    text = "INFO loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136 MiB.\nAborted"
    engines, _ = make(engines=2, start_log=text, die_at_start=1)
    with pytest.raises(EngineError) as caught:
        await start_engines(engines)
    message = str(caught.value)
    assert "CUDA out of memory" in message and "engine.gpu_memory_utilization" in message
    assert str(tmp_path / "logs") in message
    assert all(dead(tree(engine)) if psutil.pid_exists(engine.server.pid) else True for engine in engines)


async def test_a_server_that_is_never_ready(make):
    (engine,), said = make(start_delay_s=60.0, start_log="Loading weights", options={"start_timeout_s": 5.0})
    with pytest.raises(EngineError, match=r"not ready after 5 s: Loading weights"):
        await engine.start()
    assert not psutil.pid_exists(engine.server.pid)


async def test_cancelling_a_start_leaves_nothing(make):
    (engine,), _ = make(start_delay_s=60.0)
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.server is not None and engine.server.pid is not None)
    await asyncio.sleep(0.3)
    running = tree(engine)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert dead(running)


async def test_a_server_that_cannot_serve_the_run_is_not_kept(make):
    (engine,), _ = make(version="0.20.0")
    with pytest.raises(UserError, match=r"runs vLLM 0\.20\.0"):
        await engine.start()
    assert not psutil.pid_exists(engine.server.pid)


async def test_an_unknown_program(make):
    (engine,), _ = make(options={"command": ("/no/such/program",)})
    with pytest.raises(EngineError, match="No such file or directory"):
        await engine.start()


async def test_a_restarted_server_gets_the_current_weights(make, tmp_path):
    from swe_rl.config.schema import ModelConfig
    from swe_rl.model.load import load_model

    (engine,), said = make()
    await engine.start()
    weights = load_model(ModelConfig()).state_dict()
    await engine.update_weights(weights, 3)
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    done = await engine.generate(PROMPT, SamplingParams(1), request_id="a")
    assert done.weight_version == 3
    assert any("weights_00000003" in line for line in said if "starts on" in line)


async def test_a_restarted_server_gets_the_current_adapter(make):
    """Upon the base, with which it is started every time."""
    trainer = TrainerConfig(lora_rank=8, lora_serving=LoraServing.adapter)
    (engine,), said = make(trainer=trainer)
    await engine.start()
    weights = {f"base_model.model.layers.0.up_proj.lora_{name}.weight": torch.zeros(8, 8) for name in "AB"}
    for version in (3, 4):
        await engine.update_weights(weights, version)
    assert all(word in tree(engine)[1].cmdline() for word in ("--enable-lora", "--max-lora-rank"))
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    done = await engine.generate(PROMPT, SamplingParams(1), request_id="a")
    assert done.weight_version == 4
    assert not any("weights_0" in line for line in said if "starts on" in line)


async def test_a_restarted_server_without_them_stays_down(make):
    (engine,), _ = make()
    await engine.start()
    await (await engine.receiver()).adopt(5)  # came by another way, of which this engine knows nothing
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine._failure is not None, 20)
    with pytest.raises(EngineError, match="nothing has the weights of step 5"):
        await engine.generate(PROMPT, SamplingParams(1), request_id="a")
    assert not psutil.pid_exists(engine.server.pid)


async def test_a_server_that_dies_while_it_takes_weights_gets_them_when_it_is_back(make):
    from swe_rl.config.schema import ModelConfig
    from swe_rl.model.load import load_model

    (engine,), _ = make()
    await engine.start()
    server = tree(engine)[1].pid
    os.kill(server, signal.SIGSTOP)
    updating = asyncio.create_task(engine.update_weights(load_model(ModelConfig()).state_dict(), 4))
    await asyncio.sleep(0.3)
    assert not updating.done()
    os.kill(server, signal.SIGKILL)
    await asyncio.wait_for(updating, 20)
    assert engine.restarts == 1
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).weight_version == 4


async def test_loss_and_return_are_recorded_and_restarts_are_bounded(make):
    (engine,), said = make(options={"max_restarts": 1})
    changes, events = [], []
    engine.on_change = lambda up: changes.append((up, engine.state))
    engine._teller.record = lambda event, fields: events.append((event, sorted(fields)))
    await engine.start()
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    assert any("engine0 serves again; it was away for" in line for line in said)
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.state is EngineState.gone, 20)
    lost = ("engine_lost", ["engine", "reason", "requests", "work_s"])
    assert events == [lost, ("engine_back", ["away_s", "engine"]), lost]
    starting, up, gone = (False, EngineState.starting), (True, EngineState.up), (False, EngineState.gone)
    assert changes == [starting, up, starting, gone] and "already" in str(engine.why_lost)
    with pytest.raises(EngineError, match="restarted 1 times already"):
        await engine.generate(PROMPT, SamplingParams(1), request_id="a")


async def test_a_hung_server_is_replaced_and_its_weights_are_given_back(make):
    (engine,), _ = make()
    engine.restore = lambda client: client.adopt(5)
    await engine.start()
    await (await engine.receiver()).adopt(5)
    engine._http.lose("no answer for 60 s")
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    assert (await engine.generate(PROMPT, SamplingParams(1), request_id="a")).weight_version == 5


async def test_a_restart_that_is_given_up_leaves_no_server(make):
    """Its GPUs are the trainer's next, and an engine that is gone is not put to sleep."""

    async def full(client):
        raise DiskError("no space left")

    (engine,), _ = make()
    engine.restore = full
    await engine.start()
    await (await engine.receiver()).adopt(5)
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.state is EngineState.gone, 20)
    assert str(engine.why_lost).endswith("the restart failed: no space left")
    assert not psutil.pid_exists(engine.server.pid)


async def test_a_pause_outlives_a_restart(make):
    (engine,), _ = make()
    await engine.start()
    await engine.pause()
    os.kill(tree(engine)[1].pid, signal.SIGKILL)
    await until(lambda: engine.restarts == 1 and engine.state is EngineState.up, 20)
    asking = asyncio.create_task(engine.generate(PROMPT, SamplingParams(1), request_id="a"))
    await asyncio.sleep(0.2)
    assert not asking.done()
    await engine.resume()
    assert (await asking).token_ids


async def test_before_start(make):
    (engine,), _ = make()
    with pytest.raises(EngineError, match="not started"):
        await engine.generate([1], SamplingParams(1), request_id="a")
