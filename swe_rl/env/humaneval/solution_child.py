"""Is the program that runs a solution: it reads arguments, calls the function, and writes what that returns.

This source is copied behind `plain_values` and given to `python -c`.

Invariants:
- What the solution prints goes to stderr, so it is no answer.
"""

import importlib
import os
import sys

from swe_rl.env.humaneval.plain_values import _from_text, _to_text


def _serve(module: str, function: str) -> None:
    """Answers each line of arguments with a line, until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    called = getattr(importlib.import_module(module), function)
    for line in questions:
        try:
            answer = _to_text(("returned", called(*_from_text(line))))
        except Exception as error:
            answer = _to_text(("raised", f"{type(error).__name__}: {error}"))
        answers.write(answer + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
