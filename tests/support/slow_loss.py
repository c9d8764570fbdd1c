"""A loss that takes its time without any work: a step is as long as a test wants, on a machine that is not quick."""

import time

SECONDS = 1.0  # for each micro-batch


class SlowLoss:
    def loss(self, tokens):
        time.sleep(SECONDS)
        return -tokens.logprobs * tokens.advantages
