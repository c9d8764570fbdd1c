import json
import random

import numpy as np
import torch

from swe_rl.trainer.checkpoint.folder import capture_rng, restore_rng


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()


def test_every_generator_goes_on_as_if_nothing_had_happened():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()
    state = json.loads(json.dumps(capture_rng()))
    expected = [draw() for _ in range(2)]
    draw()
    restore_rng(state)
    assert [draw() for _ in range(2)] == expected
