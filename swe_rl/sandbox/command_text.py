"""What bash would say to a command that cannot be handed to it at all."""

from swe_rl.sandbox.protocol import ExecResult

MAX_COMMAND_BYTES = 120_000  # Linux: 128 KiB for one argument


def refused_result(command: str) -> ExecResult | None:
    if "\0" in command:
        return ExecResult(126, "bash: the command contains a NUL byte\n", False, 0, 0.0)
    size_bytes = len(command.encode("utf-8", "replace"))
    if size_bytes > MAX_COMMAND_BYTES:
        words = f"bash: the command is too long ({size_bytes} bytes, limit {MAX_COMMAND_BYTES})\n"
        return ExecResult(126, words, False, 0, 0.0)
    return None
