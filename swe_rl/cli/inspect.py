"""Hydra's own looks at a configuration (`--cfg`, `--info`, completion), with secrets masked.

Invariants:
- What these print is for reading: a secret's place holds `***` instead of its value.
"""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from swe_rl.config.secrets import MASK, mask_text, mask_tree
from swe_rl.config.yaml_text import parse, render


def show(flags: argparse.Namespace, run_hydra: Callable[[], None]) -> int:
    """Runs Hydra and passes its output on. Returns the exit status."""
    for name in [name for name in os.environ if name.startswith("SWE_RL_SECRET_")]:
        os.environ[name] = MASK
    printed, status = StringIO(), 0
    try:
        with redirect_stdout(printed):
            run_hydra()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    text = printed.getvalue()
    sys.stdout.write(_masked_yaml(text, flags.package) if flags.cfg else mask_text(text))
    sys.stdout.flush()
    return status


def _masked_yaml(text: str, package: str | None) -> str:
    """Unchanged, comments included, where there is nothing to mask."""
    values = parse(text)
    masked = mask_tree(values, "" if package in (None, "_global_") else str(package))
    return mask_text(text) if masked == values else render(masked)
