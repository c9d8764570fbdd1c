"""The sandbox without processes."""

import pytest

from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.sandbox import ExecResult, SandboxError, Workspace
from tests.support.scripted_sandbox import ScriptedCommand, ScriptedProvider


async def test_commands_are_answered_by_the_function():
    def respond(command: ScriptedCommand) -> ExecResult | str:
        if command.command == "fail":
            return ExecResult(1, "no", False, 0, 0.5)
        command.files["made"] = b"by a command"
        return f"ran {command.command}"

    provider = ScriptedProvider(respond, {"a": b"1"})
    one, two = [await provider.create(Workspace(), owner="o") for _ in range(2)]
    assert (await one.exec("x", timeout_s=1)).output == "ran x"
    assert (await one.exec("fail", timeout_s=1)).exit_code == 1
    assert await one.read_file("made") == b"by a command"
    with pytest.raises(MissingFileError):
        await two.read_file("made")
    await two.write_file("a", b"2")
    assert (await one.read_file("a"), await two.read_file("a")) == (b"1", b"2")
    assert one.commands == ["x", "fail"]


async def test_leaks_show_and_closed_means_closed():
    provider = ScriptedProvider()
    one = await provider.create(Workspace(), owner="o")
    two = await provider.create(Workspace(), owner="o")
    await one.close()
    assert provider.open_sandboxes == [two]
    with pytest.raises(SandboxError):
        await one.exec("x", timeout_s=1)
    await provider.close()
    assert provider.open_sandboxes == []
    with pytest.raises(SandboxError):
        await provider.create(Workspace(), owner="o")
