"""The trainer of one process, with the verbs that the loop uses.

Invariants:
- Goes on from a checkpoint of many ranks as well as from its own kind.
- With an adapter there is one set of the base's weights for the policy, the reference, and whoever gave the model.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from swe_rl.algo.row import Row
from swe_rl.config.schema import TrainerConfig
from swe_rl.engine.transfer.protocol import Announced, SendsWeights, Sent
from swe_rl.model.experts import HubNamed
from swe_rl.trainer.checkpoint import folder as checkpoint
from swe_rl.trainer.checkpoint.folder import Checkpoint
from swe_rl.trainer.checkpoint.stored import restore, verified
from swe_rl.trainer.lora.adapter import Adapter, attach
from swe_rl.trainer.lora.merged import MergedForEngines
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.send.wire import WireEnd

AnyModel = TypeVar("AnyModel", bound=nn.Module)


def with_adapter(
    model: AnyModel, config: TrainerConfig, base: Mapping[str, Any] | None = None
) -> tuple[AnyModel, Adapter]:
    """A model that carries an adapter above the very parameters of `model`, which stays as it is but is frozen.

    `base` is `fingerprint.base_of`. Raises TrainerError.
    """
    shared = {id(tensor): tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    policy = copy.deepcopy(model, shared)
    return policy, attach(policy, config, base)


class LocalTrainer(Trainer, SendsWeights):
    """Meets `TrainsPolicy`."""

    _wire: WireEnd | None = None

    def row_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        return self.token_logprobs(rows, temperature=1.0)

    def weights(self) -> Mapping[str, Tensor]:
        return MergedForEngines(self.engine_weights()) if self.adapter else HubNamed(self.policy_weights())

    def wire_address(self, loopback: bool) -> tuple[str, int]:
        return self._wire_end.address(loopback)

    def open_wire(self, kind: str, host: str, port: int, world: int) -> str | None:
        return self._wire_end.open(kind, host, port, world)

    def announce_weights(self, twice: Mapping[str, str]) -> list[Announced]:
        return self._wire_end.announce(self.engine_weights(), twice)

    def transfer_weights(self, twice: Mapping[str, str]) -> Sent:
        return self._wire_end.send(self.engine_weights(), twice)

    @property
    def _wire_end(self) -> WireEnd:
        if self._wire is None:
            self._wire = WireEnd(0, next(self.model.parameters()).dtype)
        return self._wire

    def save(
        self,
        folder: Path,
        *,
        step: int,
        weight_version: int,
        data_order: Any,
        config: Mapping[str, Any],
        hash_of_config: str,
        keep: int,
    ) -> Path:
        return checkpoint.save(
            folder,
            step=step,
            weight_version=weight_version,
            model=self.policy_weights(),
            trainer=self.state_dict(),
            data_order=data_order,
            config=config,
            hash_of_config=hash_of_config,
            keep=keep,
        )

    def wait(self) -> None:
        """Nothing is written behind its back."""

    def load(self, folder: Path, expected_config_hash: str | None = None) -> Checkpoint:
        state = verified(folder, expected_config_hash)
        restore(self, folder, state)
        return checkpoint.of_state(folder, state, model={}, optimizer={})

    def failure(self) -> None:
        """It is this process."""

    def close(self) -> None:
        """It ends with this process."""
