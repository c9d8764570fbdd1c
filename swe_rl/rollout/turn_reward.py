"""What a turn brings by itself (`rollout.turn_rewards`), beside the reward of its trajectory.

Invariants:
- A pure function of what is recorded of the turn: no test runs for it, and nothing that the agent wrote is believed but
  the status of its command.
- Nothing is paid for a turn of which nothing is known: of a command without a status, of the one that submits.
"""

from dataclasses import astuple

from swe_rl.agent.protocol import Turn
from swe_rl.config.schema import TurnRewardsConfig


def pays(table: TurnRewardsConfig) -> bool:
    return any(astuple(table))


def turn_reward(turn: Turn, table: TurnRewardsConfig) -> float:
    if turn.format_error:
        return table.format_error
    if turn.command is None or turn.exit_code is None:
        return 0.0
    return table.command_failed if turn.exit_code else table.command_done
