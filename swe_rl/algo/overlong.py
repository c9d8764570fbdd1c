"""What becomes of overlong trajectories: the soft punishment and the filter.

Invariants:
- The penalty is never positive, 0 up to the buffer, and falls linearly to -penalty at the very end of the budget.
- The filter takes trajectories out of the loss only; their rewards stay in the baseline.
"""

# How a trajectory ends that a limit cut short: on turns, on tokens, on time.
CUT_SHORT = frozenset({"step_limit", "context_overflow", "agent_timeout"})


def overlong_penalty(length_tokens: int, max_tokens: int, share: float, penalty: float) -> float:
    """What a trajectory of `length_tokens` is charged; `share` of `max_tokens` is the buffer (0: off).

    DAPO, arXiv:2503.14476, section 3.4, equation 13, with the buffer given as a share of the budget.
    """
    buffer_tokens = share * max_tokens
    if buffer_tokens <= 0:
        return 0.0
    over = length_tokens - (max_tokens - buffer_tokens)
    return -penalty * min(1.0, max(0.0, over / buffer_tokens))


def filtered(status: str, overlong_filter: bool) -> bool:
    """Whether `algo.overlong_filter` masks a trajectory of this status.

    DAPO, arXiv:2503.14476, section 3.4, overlong filtering: the loss of truncated samples is masked.
    """
    return overlong_filter and status in CUT_SHORT
