"""Decides which instances may be used: they are proven first, and there is one way to leave an instance out.

Invariants:
- An instance whose proof failed here is used by nobody, unless env.unproven=keep. Where a proof mended the environment,
  the mended one is used.
- A proof counts only for what it was made with: `digests` names the tests, the tree and the environment by hashes.
  The same holds for the strength of the tests, which the proof has.
- With env.min_strength nobody uses an instance whose tests accept more wrong patches, or were never measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from swe_rl.config.choices import SandboxKind, Unproven
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.grading.twin_trial import remember_proof
from swe_rl.env.proof.record import (
    Proof,
    ProofBook,
    Provable,
    Standing,
    book_of,
    book_path,
    made_of_digest,
    tests_digest,
)
from swe_rl.env.strength.record import Strength
from swe_rl.env.swe.read import Read
from swe_rl.env.swe.splits import DatasetEnv

# An error shows so many instances; the others are counted.
_SHOWN = 3


class ProvenEnv(DatasetEnv, Provable):
    """Holds what environments share whose instances have a gold patch. `judged_by` names what grades, for proofs."""

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
        # It maps an instance to the digest of the environment that its proof is of.
        self._promised: dict[str, str] = {}

    @property
    def book(self) -> ProofBook:
        """Returns the proofs that env.proofs names. Raises InstanceError."""
        return book_of(book_path(self._config.proofs, self._cache))

    def standing(self, instance: Instance) -> tuple[Standing, str]:
        """Returns whether the instance is proven, and why it is not. Raises InstanceError for env.proofs."""
        proof = self.book.of(instance.instance_id)
        if proof is None:
            measured = " and measured its tests" if instance.is_unmeasured else ""
            return Standing.untried, f"nobody tried its gold patch{measured} here"
        if not self._is_proof_of(proof, instance):
            return Standing.untried, "its proof is of another row, of other tests or of another kind of sandbox"
        if not proof.proven:
            return Standing.refuted, proof.reason
        if proof.environment and self._environment_is_other(proof.applied(instance), proof.environment):
            return Standing.untried, "its proof is of an environment with other packages than are here"
        if len(proof.gold) < self._config.proof_runs:
            runs = f"its gold patch was run {len(proof.gold)} times"
            return Standing.untried, f"{runs}, and env.proof_runs={self._config.proof_runs}"
        return Standing.proven, ""

    def is_settled(self, instance: Instance) -> bool:
        """Tells whether an instance is proven, or tried with a verdict; what could not be built is tried again."""
        standing, _ = self.standing(instance)
        proof = self.book.of(instance.instance_id)
        return standing is Standing.proven or (standing is Standing.refuted and proof is not None and proof.is_verdict)

    def has_a_way(self, instance: Instance) -> bool:
        """Tells whether these sandboxes can start from the instance."""
        del instance
        return True

    def untried(self, split: str) -> list[Instance]:
        """Returns the chosen instances of a split that nobody tried here. Raises InstanceError."""
        return [it for it in self.chosen(split) if self.standing(it)[0] is Standing.untried]

    def chosen(self, split: str) -> list[Instance]:
        """Returns the chosen instances, proven or not, as their rows have them. Raises InstanceError."""
        return self._chosen(split)[0]

    def unusable(self, split: str) -> Mapping[str, str]:
        """Returns what the data set has and no proof could help, by name with the reason. Raises InstanceError."""
        del split
        return {}

    def forget(self) -> None:
        """Forgets which instances can be used, so that it is decided anew once proofs were made."""
        self._loaded.clear()
        self._promised.clear()

    def is_tried(self, instance: Instance) -> bool:
        """Tells whether job=validate has nothing to prove. The strength of the tests is another matter."""
        return self.standing(instance)[0] is Standing.proven and self._proof_of_now(instance) is not None

    def _proof_of_now(self, instance: Instance) -> Proof | None:
        """Returns the proof of these tests, this tree and this kind of sandbox, and None where there is none."""
        proof = self.book.of(instance.instance_id)
        return proof if proof is not None and self._is_proof_of(proof, instance) else None

    def _is_proof_of(self, proof: Proof, instance: Instance) -> bool:
        """Tells whether a proof is of these tests, this tree and this kind of sandbox.

        A row may name the tests that its proof measured, as those of `job=mine` do: gold was graded with them.
        """
        made_of = (proof.tests, proof.made_of)
        if made_of == self.digests(instance):
            return True
        if not proof.fail_to_pass or sorted(proof.fail_to_pass) != sorted(instance.fail_to_pass):
            return False
        unmeasured = replace(instance, fail_to_pass=(), pass_to_pass=())
        return sorted(proof.pass_to_pass) == sorted(instance.pass_to_pass) and made_of == self.digests(unmeasured)

    def strength(self, instance: Instance) -> Strength | None:
        """Returns what was measured of the tests as they are now, and None where nothing was."""
        proof = self._proof_of_now(instance)
        return proof.strength if proof is not None else None

    def strengths(self, split: str) -> dict[str, Strength]:
        """Returns the strengths by the names of a split's used instances, where they were measured."""
        known = {instance.instance_id: self.strength(instance) for instance in self._rows(split)}
        return {name: strength for name, strength in known.items() if strength is not None}

    def _rows(self, split: str) -> list[Instance]:
        """Returns the used instances as their rows have them, because proofs are made of the rows."""
        used = {instance.instance_id for instance in self.instances(split)}
        return [instance for instance in self.chosen(split) if instance.instance_id in used]

    def digests(self, instance: Instance) -> tuple[str, str]:
        """Returns the hash of what judges the instance, and the hash of what its tree and environment are made of."""
        as_image = self._sandbox is not SandboxKind.process
        return tests_digest(instance, self._judged_by), made_of_digest(instance, as_image=as_image)

    def left_out_because(self, instance: Instance) -> str:
        """Returns why an instance is left out, and an empty text for one that is used."""
        return self._unproven_because(instance) or self._weak_because(instance)

    def _weak_because(self, instance: Instance) -> str:
        """Returns why the tests are too weak for env.min_strength, and an empty text where they are not."""
        least = self._config.min_strength
        if least <= 0.0:
            return ""
        strength = self.strength(instance)
        if strength is None:
            return "the strength of its tests was not measured (job=validate)"
        if strength.false_pass_rate is None:
            return f"the strength of its tests is not known: {strength.reason}"
        if 1.0 - strength.false_pass_rate >= least:
            return ""
        accepted = f"its tests accept {strength.accepted} of {strength.graded} wrong patches"
        return f"{accepted}, and env.min_strength={least:g}"

    def _unproven_because(self, instance: Instance) -> str:
        """Returns why an instance counts as unproven, and an empty text where it may be used.

        An image that others published and nobody tried here is used, unless env.unproven=refuse. Nothing uses a row
        whose tests nobody measured, because any patch would resolve it.
        """
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
        """Tells whether the environment has other packages than the proven one.

        It is not other where it is not there yet: once made as the proof says, it has the same packages or is refused.
        """
        return self.environment_digest(instance) not in ("", proven)

    def _usable(self, split: str) -> tuple[Sequence[Instance], Mapping[str, str], int | None]:
        """Returns the usable instances, those left out with the reasons, and the rows of the split.

        Raises InstanceError where env.unproven=refuse, or where nothing is left.
        """
        instances, rows = self._chosen(split)
        reasons = {instance.instance_id: self.left_out_because(instance) for instance in instances}
        left_out = {name: reason for name, reason in reasons.items() if reason}
        refused = self._config.unproven is Unproven.refuse and any(map(self._unproven_because, instances))
        if left_out and (refused or len(left_out) == len(instances)):
            raise InstanceError(_describe_left_out(split, left_out, len(instances), self._config))
        usable = [self.as_proven(instance) for instance in instances if not reasons[instance.instance_id]]
        return usable, left_out, rows

    def as_proven(self, instance: Instance) -> Instance:
        """Returns the instance as its proof has it, and as its row has it where it is not proven."""
        proof = self.book.of(instance.instance_id)
        if proof is None or not proof.proven or self.standing(instance)[0] is not Standing.proven:
            return instance
        self._promised[instance.instance_id] = proof.environment
        if proof.weak_twins is not None:
            remember_proof(instance.instance_id, proof.weak_twins, proof.twins_tried)
        return proof.applied(instance)


def _describe_left_out(split: str, left_out: Mapping[str, str], instances: int, config: EnvConfig) -> str:
    shown = "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:_SHOWN])
    more = f"; and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    way = "job=validate proves instances (job=prepare those that it builds)"
    rest = {
        Unproven.refuse: "; env.unproven=skip leaves them out",
        Unproven.skip: "; env.unproven=keep uses them all the same",
    }.get(config.unproven, "")
    problem = "are not proven"
    if config.min_strength:
        problem = "are not proven, or their tests are too weak"
        rest += "; env.min_strength=0 uses instances with weak tests"
    return f"{len(left_out)} of {instances} instances of {split} {problem}: {shown}{more}. {way}{rest}"
