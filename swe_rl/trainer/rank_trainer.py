"""Does all that a loop asks of a trainer, as one rank: in a process beside others, or alone in the loop's.

Invariants:
- Each of many ranks is asked the same, in the same order; rank 0 has the answer. Alone, every collective is the
  identity (`mesh.alone`), and nothing else differs.
- What only the ranks' driver can know (who is alive, in which order they leave) is not here, but in `ranks`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swe_rl.algo.row import Row
from swe_rl.config.schema import AlgoConfig, TrainerConfig
from swe_rl.engine.transfer.sent_weights import Announced, SentWeights, Staging
from swe_rl.facts.schedule import NO_CHANGES, value_at
from swe_rl.model.experts import StoredLayout
from swe_rl.model.stored_names import stored_names
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.checkpoint.folder import Checkpoint
from swe_rl.trainer.lora import EngineWeights
from swe_rl.trainer.policy import Trainer
from swe_rl.trainer.pulse import BeatingWeights
from swe_rl.trainer.send import hand_over
from swe_rl.trainer.send.wire import StagingEnd, WireEnd
from swe_rl.trainer.trainer import TrainMetrics


class RankTrainer(Trainer):
    """A trainer that meets `TrainsPolicy`.

    `temperatures` has what the rollouts' temperature becomes from a step on; before the first change it is
    `temperature`.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainerConfig,
        algo: AlgoConfig,
        *,
        temperature: float = 1.0,
        temperatures: Mapping[int, float] = NO_CHANGES,
        **others: Any,
    ) -> None:
        super().__init__(model, config, algo, temperature=min([temperature, *temperatures.values()]), **others)
        self._first_temperature = temperature
        self._temperatures = temperatures
        self._temperature = temperature

    def train_step(self, rows: Sequence[Row], step: int, lr: float | None = None) -> TrainMetrics:
        """Does what `Trainer` does, at the temperature that the rollouts of this step had. Raises TrainerError."""
        self._temperature = value_at(self._temperatures, step, self._first_temperature)
        return super().train_step(rows, step, lr)

    def start(self) -> None:
        """Does nothing: the trainer is this process, which is up."""

    def row_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        return self.token_logprobs(rows, temperature=1.0)

    def save(self, folder: Path, **state: Any) -> Path:
        """Calls `Checkpoints.save`. A rank writes behind its driver's back; alone it is done when this returns."""
        return self._checkpoints.save(folder, self, background=not self._is_alone, **state)

    def wait(self) -> None:
        self._checkpoints.wait()

    def load(self, folder: Path, expected_config_hash: str | None = None) -> Checkpoint:
        return self._checkpoints.load(folder, self, expected_config_hash)

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the live weights, where this process has them whole."""
        return EngineWeights(self.engine_weights(), self._layout)

    def send_weights(self, pipe: Any) -> None:
        """Sends the weights to the ranks' driver; see `hand_over`."""
        dtype = None
        if self.sends_adapter:
            dtype = torch.float32
        hand_over.send_weights(self._beating_weights, self._mesh, pipe, dtype, self._layout)

    def write_weights(self, folder: Path, twice: Mapping[str, str]) -> None:
        """Writes all weights as safetensors files of an existing folder, each rank its share; see `hand_over`."""
        hand_over.write_weights(self._beating_weights, self._mesh, folder, twice, self._layout)

    def wire_address(self, loopback: bool) -> tuple[str, int]:
        return self._wire.address(loopback)

    def open_wire(self, kind: str, host: str, port: int, world: int) -> str | None:
        return self._wire.open(kind, host, port, world)

    def announce_weights(self, twice: Mapping[str, str]) -> list[Announced]:
        return self._wire.announce(self._beating_weights, twice)

    def transfer_weights(self, twice: Mapping[str, str]) -> SentWeights:
        return self._wire.send(self._beating_weights, twice)

    def open_staging(self, twice: Mapping[str, str]) -> Staging:
        """Opens the buffers of this rank's GPU alone."""
        return self._staging.open(self._beating_weights, twice)

    def stage(self, number: int) -> SentWeights:
        return self._staging.stage(number)

    def close_staging(self) -> None:
        self._staging.close()

    def failure(self) -> Exception | None:
        """Returns None: the trainer is this process, which raises what goes wrong."""
        return None

    def close(self) -> None:
        """Returns once nothing is being written and every rank is here: nobody leaves a collective of others."""
        self.wait()
        self._mesh.barrier()

    @property
    def _beating_weights(self) -> BeatingWeights:
        """The weights, with a sign of life for each that is read, because one of them may be a collective."""
        return BeatingWeights(self.engine_weights(), self._compute.beat)

    @property
    def _layout(self) -> StoredLayout:
        return stored_names(self._compute.bare(self.model))

    @property
    def _is_alone(self) -> bool:
        return self._mesh.shards is None

    # Made when first asked for: most trainers send their weights one way only.

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._mesh, timeout_s=self.config.collective_timeout_s, beat=self._compute.beat)

    @cached_property
    def _wire(self) -> WireEnd:
        return WireEnd(self._mesh.rank, hand_over.exchange_type(self._mesh), layout=self._layout)

    @cached_property
    def _staging(self) -> StagingEnd:
        return StagingEnd(hand_over.exchange_type(self._mesh), self._mesh.device, layout=self._layout)
