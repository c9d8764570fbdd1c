"""This module says what each kind of extension has to have, and what it is given.

Invariants:
- It has names alone. The protocols are in their packages, and `swe_rl.api` shows them all. A test holds both against
  each other.
- Besides swe_rl's configuration it needs the standard library alone, because rules read it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Config, Extensible


@dataclass(frozen=True, slots=True)
class Contract:
    """This record describes one kind of extension.

    `given` names the parameters that a factory gets where its signature names them; all others come from `params`.
    `methods` has the methods that a class must have, with the parameters that they are called with, in order.
    `declares` has the class attributes that rules read, with their values where a class says nothing. `more_methods`
    has the methods that a class must have as well where it declares the attribute of that name.
    """

    given: tuple[str, ...]
    methods: Mapping[str, tuple[str, ...]]
    declares: Mapping[str, object]
    more_methods: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def methods_of(self, declared: Callable[[str], object]) -> dict[str, tuple[str, ...]]:
        """Returns the methods that a class must have; `declared` returns what the class says of an attribute."""
        more = (methods for flag, methods in self.more_methods.items() if declared(flag))
        return {**self.methods, **{name: arguments for methods in more for name, arguments in methods.items()}}


# This table says for each kind what it is given, which methods it must have, and what it may declare.
CONTRACTS: Mapping[ExtensionKind, Contract] = {
    ExtensionKind.agent: Contract(
        ("config", "client", "max_turns", "command_timeout_s", "api_key", "patches", "compaction"),
        {"run": ("work",)},
        {"needs_door": False},
    ),
    ExtensionKind.env: Contract(
        ("config", "cache", "sandbox"),
        {
            "instances": ("split",),
            "workspace": ("instance",),
            "prompt": ("instance",),
            "grade": ("instance", "patch", "sandboxes", "timeout_s"),
        },
        {"needs_container": False},
    ),
    ExtensionKind.reward: Contract(
        (),
        {"reward": ("attempt",)},
        {"failure": 0.0, "pays_turns": False},
        {"pays_turns": {"turn_rewards": ("attempt",)}},
    ),
    ExtensionKind.advantage: Contract(("config",), {"advantages": ("groups",)}, {"needs_group": True}),
    ExtensionKind.loss: Contract(
        ("config",),
        {"loss": ("tokens",)},
        {
            "needs_rollout_logprobs": False,
            "needs_reference_logprobs": False,
            "needs_all_rows": False,
            "needs_sequences": False,
        },
        {"needs_sequences": {"sequence_terms": ("tokens",)}},
    ),
    ExtensionKind.router: Contract(
        ("config", "capacity_tokens", "max_num_seqs", "host"),
        {"initial": ("engines",), "step": ("state", "event", "now_s")},
        {},
    ),
    ExtensionKind.logger: Contract(("folder", "run_name", "configuration"), {"log": ("record", "step")}, {}),
    ExtensionKind.grader: Contract(
        ("config",), {"grade": ("instance", "patch", "workspace", "sandboxes", "timeout_s")}, {}
    ),
    ExtensionKind.rule: Contract((), {"findings": ("config",)}, {}),
    ExtensionKind.sandbox: Contract(
        ("config", "scratch", "warn"),
        {"create": ("workspace", "owner", "door"), "close": ()},
        {
            "takes_folders": True,
            "takes_images": False,
            "has_network": False,
            "has_door": False,
            "ends_when_killed": False,
        },
        {"ends_when_killed": {"is_there": ("sandbox_id",)}},
    ),
}


def group_of(config: Config, kind: ExtensionKind) -> Extensible:
    """Returns the part of the configuration that is about a kind."""
    return cast(Extensible, getattr(config, kind))
