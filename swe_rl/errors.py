"""The roots of every error that this project raises.

Invariants:
- `UserError`: the configuration or the input is wrong. Printed as one paragraph, exit status 2, nothing was started.
- `RunError`: the run failed for a reason that is not the user's. Its real cause is shown, exit status 1.
- Each boundary (engine, sandbox, agent, grader, trace store, disk, scheduler) has one subclass, in its own package.
"""


class SweRlError(Exception):
    """Root of all of them; `exit_status` is what the process returns when nothing handles it."""

    exit_status: int = 1


class UserError(SweRlError):
    """The configuration or the input is wrong; the message says what, where and the way out."""

    exit_status = 2


def not_installed(
    switch: str, package: str, extra: str, error: ImportError, *, on: str = "true", off: str = "false"
) -> UserError:
    """Of what a key asks for that is `on`."""
    way_out = f"pip install 'swe_rl[{extra}]', or start with {switch}={off}."
    return UserError(f"{switch}={on} needs the {package} package ({error}): {way_out}")


class RunError(SweRlError):
    """The run failed while it ran."""


def one_line(error: object, max_chars: int = 400) -> str:
    """What somebody else's error says, shortened: a container engine's own words before those of its SDK."""
    text = " ".join(str(getattr(error, "explanation", None) or error).split()) or type(error).__name__
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} ..."


def count_noun(number: int, noun: str) -> str:
    """Returns a number with its noun, in the plural unless the number is 1: `2 GPUs`, `3 trajectories`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}s"
