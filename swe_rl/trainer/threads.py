"""How many threads torch may use, for the length of one block.

Invariants:
- The former number is back at the end, on success and on error: an engine in this process keeps its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
