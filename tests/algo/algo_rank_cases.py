"""The trainer's distributed cases with the losses and masks that look at whole trajectories.

As tests/trainer/rank_cases.py, which does the work: `python algo_rank_cases.py RANK WORLD PORT FOLDER CASE...`.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path


def load():
    """`rank_cases` with the settings of the words `gspo`, `gspotoken`, `cispo`, `geometric` and `stale`."""
    from swe_rl.config.choices import Correction, MaskLevel, PolicyLoss

    path = Path(__file__).parent.parent / "trainer" / "rank_cases.py"
    spec = importlib.util.spec_from_file_location("rank_cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plain = module.settings

    def settings(case):
        config, algo, model = plain(case)
        words = case.split("_")
        losses = {"gspo": PolicyLoss.gspo, "gspotoken": PolicyLoss.gspo_token, "cispo": PolicyLoss.cispo}
        loss = next((loss for word, loss in losses.items() if word in words), PolicyLoss.clip)
        algo = replace(algo, policy_loss=loss)
        if "geometric" in words:
            algo = replace(algo, mask_level=MaskLevel.geometric, mask_low=0.4, mask_high=2.5)
        if "stale" in words:
            algo = replace(algo, stale_correction=Correction.token_tis)
        return config, algo, model

    module.settings = settings
    return module


if __name__ == "__main__":
    rank, world, port = (int(argument) for argument in sys.argv[1:4])
    load().main(rank, world, port, Path(sys.argv[4]), sys.argv[5:])
