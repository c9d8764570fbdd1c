"""A server on another node: who is let in by its relay, which GPUs it gets there, and its end."""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest

from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.vllm import step as vllm_step
from swe_rl.engine.vllm.step import Gate, StepSpec, has_key
from swe_rl.host.addresses import free_port
from tests.support.fake_vllm.server import FakeVllm

SLICES = "MIG-a,MIG-b"


@pytest.mark.parametrize(
    ("head", "right"),
    [
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer k\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nhost: a\r\nauthorization:Bearer k\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer kk\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nAuthorization: k\r\n\r\n", False),
        (b"GET /?authorization:Bearer k HTTP/1.1\r\n\r\n", False),
        (b"Authorization: Bearer k\r\n\r\n", False),  # the request line is none
    ],
)
def test_the_key(head, right):
    assert has_key(head, "k") is right
    assert not has_key(head, "")


async def test_only_who_has_the_key_gets_through():
    async with FakeVllm() as fake:
        gate = Gate(int(fake.url.rpartition(":")[2]), "right")
        relay = await asyncio.start_server(gate.connected, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        try:
            for key, status in (("right", 200), ("wrong", 401), (None, 401)):
                client = HttpClient(url, api_key=key, tries=1)
                await client.open()
                answers = [await client.get("/health") for _ in range(3)]  # over one connection
                assert {one.status for one in answers} == {status}
                await client.close()
        finally:
            gate.close()
            relay.close()


async def test_a_server_that_is_not_up_yet():
    gate = Gate(free_port(), "k")
    relay = await asyncio.start_server(gate.connected, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}", api_key="k", tries=1)
    await client.open()
    assert (await client.get("/health")).status == 503
    await client.close()
    relay.close()


def start(spec, *command, **environ):
    program = [sys.executable, "-I", vllm_step.__file__, spec.text(), *command]
    env = {**os.environ, "VLLM_API_KEY": "k", **environ}
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def spec(**more):
    return StepSpec(free_port(), free_port(), 1.0, **more)


SHOW = (sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))")


@pytest.mark.parametrize(
    ("more", "visible", "expected"),
    [
        ({"gpus": (1,)}, "2,3", "3"),  # the job's, by SLURM's numbers there
        ({"gpus": (0,), "mig": True}, SLICES, "MIG-a"),
        ({"gpus": (1,), "mig": True}, SLICES, "MIG-b"),
        ({"gpus": (0,), "mig": True, "by_number": True}, SLICES, "0"),
        ({"gpus": None}, "", ""),
    ],
)
def test_its_gpus(more, visible, expected):
    process = start(spec(**more), *SHOW, CUDA_VISIBLE_DEVICES=visible)
    process.wait(60)  # its input stays open
    assert process.stdout.read().decode().strip() == expected, process.stderr.read()


def test_a_gpu_that_is_not_there():
    process = start(spec(gpus=(2,)), *SHOW, CUDA_VISIBLE_DEVICES="0,1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and b"sees 2" in err


def test_it_ends_with_its_input_and_takes_the_server_along():
    process = start(spec(), sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    pid = int(process.stdout.readline())
    process.stdin.close()
    process.wait(30)
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
        assert time.monotonic() < until


def test_the_servers_own_status():
    process = start(spec(), sys.executable, "-c", "raise SystemExit(7)")
    process.wait(60)
    assert process.returncode == 7


def test_a_port_in_use_says_so():
    one = spec()
    first = start(one, sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)")
    first.stdout.readline()
    second = start(one, *SHOW)
    _, err = second.communicate(timeout=60)
    first.stdin.close()
    first.wait(30)
    assert second.returncode == 1 and b"ddress already in use" in err


def test_the_spec_is_what_it_was():
    assert StepSpec(**json.loads(StepSpec(1, 2, 3.0, (0,), True).text())).gpus == [0]
