"""A sandbox that is wrapped answers as it does without the wrapper."""

from swe_rl.sandbox.wrapped import WrappedSandbox
from tests.support.scripted_sandbox import ScriptedSandbox


async def test_every_call_reaches_the_wrapped_sandbox():
    inner = ScriptedSandbox("s-1", "/testbed", lambda asked: f"{asked.command} within {asked.timeout_s:g} s")
    wrapped = WrappedSandbox(inner)
    assert (wrapped.sandbox_id, wrapped.workdir, wrapped.door_url) == ("s-1", "/testbed", None)
    assert (await wrapped.exec("ls", timeout_s=3.0)).output == "ls within 3 s"
    await wrapped.write_file("a", b"1")
    assert await wrapped.read_file("a") == inner.files["a"] == b"1"
    await wrapped.close()
    assert inner.closed
