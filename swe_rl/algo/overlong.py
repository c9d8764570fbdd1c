"""The soft punishment of overlong trajectories.

Invariants:
- Never positive, 0 up to the buffer, and falling linearly to -penalty at the very end of the budget.
"""


def overlong_penalty(length_tokens: int, max_tokens: int, share: float, penalty: float) -> float:
    """What a trajectory of `length_tokens` is charged; `share` of `max_tokens` is the buffer (0: off).

    DAPO, arXiv:2503.14476, section 3.4, equation 13, with the buffer given as a share of the budget.
    """
    buffer_tokens = share * max_tokens
    if buffer_tokens <= 0:
        return 0.0
    over = length_tokens - (max_tokens - buffer_tokens)
    return -penalty * min(1.0, max(0.0, over / buffer_tokens))
