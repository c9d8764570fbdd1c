"""Environments whose instances are proven before they are used, and the one way that decides who is left out.

Invariants:
- An instance whose proof failed here is used by nobody, unless env.unproven=keep; where a proof mended the environment
  the mended one is used.
- A proof counts only for what it was made with: `digests` names the tests, the tree and the environment by hashes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swe_rl.config.choices import SandboxKind, Unproven
from swe_rl.config.schema import EnvConfig
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.proof.record import ProofBook, Provable, Standing, book_of, book_path, made_of_digest, tests_digest
from swe_rl.env.swe.read import Read
from swe_rl.env.swe.splits import DatasetEnv

_SHOWN = 3


class ProvenEnv(DatasetEnv, Provable):
    """What environments share whose instances have a gold patch. `judged_by`: names what grades, for proofs."""

    def __init__(
        self,
        config: EnvConfig,
        cache: Path,
        sandbox: SandboxKind,
        read: Callable[[EnvConfig, str], Read],
        judged_by: str = "",
    ) -> None:
        super().__init__(config, cache, read)
        self._sandbox = sandbox
        self._judged_by = judged_by or str(config.grading)
        self._promised: dict[str, str] = {}  # by instance: the environment that its proof is of

    @property
    def book(self) -> ProofBook:
        """Raises InstanceError."""
        return book_of(book_path(self._config.proofs, self._cache))

    def standing(self, instance: Instance) -> tuple[Standing, str]:
        """And why it is not proven. Raises InstanceError for env.proofs."""
        proof = self.book.of(instance.instance_id)
        if proof is None:
            measured = " and measured its tests" if instance.is_unmeasured else ""
            return Standing.untried, f"nobody tried its gold patch{measured} here"
        if (proof.tests, proof.made_of) != self.digests(instance):
            return Standing.untried, "its proof is of another row, of other tests or of another kind of sandbox"
        if not proof.proven:
            return Standing.refuted, proof.reason
        if proof.environment and self._environment_is_other(proof.applied(instance), proof.environment):
            return Standing.untried, "its proof is of an environment with other packages than are here"
        if len(proof.gold) < self._config.proof_runs:
            runs = f"its gold patch was run {len(proof.gold)} times"
            return Standing.untried, f"{runs}, and env.proof_runs={self._config.proof_runs}"
        return Standing.proven, ""

    def has_a_way(self, instance: Instance) -> bool:
        """Whether these sandboxes can start from it."""
        del instance
        return True

    def untried(self, split: str) -> list[Instance]:
        """The chosen instances of a split that nobody tried here."""
        return [it for it in self.chosen(split) if self.standing(it)[0] is Standing.untried]

    def chosen(self, split: str) -> list[Instance]:
        """Proven or not, as their rows have them. Raises InstanceError."""
        return self._chosen(split)[0]

    def forget(self) -> None:
        """Proofs were made: what can be used is decided anew."""
        self._loaded.clear()
        self._promised.clear()

    def digests(self, instance: Instance) -> tuple[str, str]:
        as_image = self._sandbox is not SandboxKind.process
        return tests_digest(instance, self._judged_by), made_of_digest(instance, as_image=as_image)

    def left_out_because(self, instance: Instance) -> str:
        """Why an instance is left out; empty for what is used. An image that others published and nobody tried here is
        used, unless env.unproven=refuse. Nothing uses a row whose tests nobody measured: any patch would resolve it."""
        kept = self._config.unproven is Unproven.keep
        if kept and not instance.is_unmeasured:
            return ""
        standing, reason = self.standing(instance)
        if instance.is_unmeasured:
            return "" if standing is Standing.proven else reason
        is_image = self._sandbox is not SandboxKind.process
        published = standing is Standing.untried and is_image and self._config.unproven is not Unproven.refuse
        return "" if standing is Standing.proven or published else reason

    def _environment_is_other(self, instance: Instance, proven: str) -> bool:
        """False where it is not there yet: made as the proof says, it has the same packages, or is refused then."""
        return self.environment_digest(instance) not in ("", proven)

    def _usable(self, split: str) -> tuple[Sequence[Instance], Mapping[str, str], int | None]:
        """Raises InstanceError where env.unproven=refuse, or where nothing is left."""
        instances, rows = self._chosen(split)
        reasons = {instance.instance_id: self.left_out_because(instance) for instance in instances}
        left_out = {name: reason for name, reason in reasons.items() if reason}
        refused = self._config.unproven is Unproven.refuse
        if left_out and (refused or len(left_out) == len(instances)):
            raise InstanceError(_words(split, left_out, len(instances), self._config.unproven))
        usable = [self._as_proven(instance) for instance in instances if not reasons[instance.instance_id]]
        return usable, left_out, rows

    def _as_proven(self, instance: Instance) -> Instance:
        proof = self.book.of(instance.instance_id)
        if proof is None or not proof.proven or self.standing(instance)[0] is not Standing.proven:
            return instance
        self._promised[instance.instance_id] = proof.environment
        return proof.applied(instance)


def _words(split: str, left_out: Mapping[str, str], instances: int, unproven: Unproven) -> str:
    shown = "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:_SHOWN])
    more = f"; and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    way = "job=validate proves instances (job=prepare those that it builds)"
    rest = {
        Unproven.refuse: "; env.unproven=skip leaves them out",
        Unproven.skip: "; env.unproven=keep uses them all the same",
    }.get(unproven, "")
    return f"{len(left_out)} of {instances} instances of {split} are not proven: {shown}{more}. {way}{rest}"
