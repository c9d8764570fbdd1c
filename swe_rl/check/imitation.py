"""Rules of imitation check what `job=sft` reads, and that a training which keeps attempts imitates them.

Invariants:
- Files are only looked for here. What is in them is refused when the job reads them, before a model is loaded.
"""

from collections.abc import Iterator
from dataclasses import asdict

from swe_rl.check.findings import Finding, Host, error, rule_about, warning
from swe_rl.config.choices import AdvantageKind, ExtensionKind, JobName, KlPlace
from swe_rl.config.parts import Part
from swe_rl.config.schema import AlgoConfig, Config, SftConfig
from swe_rl.extension.find import is_foreign
from swe_rl.facts.warm_start import imitates_data, longest_example_tokens

# Only data has these, and only demonstrations have those.
_OF_DATA = (
    "epochs", "examples_per_batch", "max_tokens", "min_reward", "max_per_instance", "mask_errors", "heldout_share",
    "tools",
)  # fmt: skip
_OF_DEMONSTRATIONS = ("tokens_per_batch", "beginner_steps", "beginner_lr", "right_fraction")


@rule_about(Part.warm_start)
def data_is_there(config: Config, host: Host) -> Iterator[Finding]:
    if host.elsewhere:
        return
    for path in config.sft.data:
        if not host.exists(path) and not host.file_exists(path):
            yield error("sft_data", "sft.data", f"{path} is not there", "files, folders of files, or folders of runs")
    tools = config.sft.tools
    if tools is not None and not host.file_exists(tools):
        yield error("sft_data", "sft.tools", "is no file", "sft.tools=FILE with a JSON list of tools, or leave it out")


@rule_about(Part.warm_start)
def keys_of_imitation(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of keys of `sft` that nothing reads, because they are of the other kind of data. Zero asks for nothing."""
    sft = config.sft
    unread: tuple[str, ...] = _OF_DATA
    why = "demonstrations are imitated"
    fix = "sft.data=[FILE]"
    if imitates_data(sft):
        unread = _OF_DEMONSTRATIONS
        why = "sft.data names what is imitated"
        fix = "sft.data=[]"
    plain = SftConfig()
    for name in unread:
        value = getattr(sft, name)
        if value and value != getattr(plain, name):
            yield warning("sft_data", f"sft.{name}", f"nothing reads it: {why}", f"leave sft.{name} out, or {fix}")


@rule_about(Part.warm_start)
def longest_conversation(config: Config, _: Host) -> Iterator[Finding]:
    """Warns of a micro-batch that the longest conversation exceeds on GPUs: memory is estimated for the micro-batch."""
    layout = config.layout
    if not imitates_data(config.sft) or not layout.trainer_gpus:
        return
    cap = config.trainer.max_tokens_per_micro_batch
    longest = longest_example_tokens(config)
    share = -(-longest // max(1, layout.sequence_parallel))
    if 0 < cap < share:
        yield warning(
            "sft_length",
            "sft.max_tokens",
            f"a conversation of {longest} tokens puts {share} on each GPU, and the memory is planned for "
            f"trainer.max_tokens_per_micro_batch={cap}",
            f"sft.max_tokens={cap * max(1, layout.sequence_parallel)}, or trainer.max_tokens_per_micro_batch={share}",
        )


@rule_about(Part.trainer)
def kept_attempts(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses what does not fit the imitation of attempts that are kept."""
    algo = config.algo
    keeps = algo.advantage is AdvantageKind.kept
    if config.job.name is JobName.rft and not keeps:
        words = f"job=rft imitates the attempts that it keeps, and algo.advantage={algo.advantage} compares them"
        yield error("imitation", "algo.advantage", words, "algo=rft, or job=train")
    if not keeps:
        for key, value, default in _keys_of_kept(config):
            if value != default:
                words = f"nothing reads it with algo.advantage={algo.advantage}"
                yield warning("imitation", key, words, f"algo=rft, or leave {key} out")
        return
    if is_foreign(config, ExtensionKind.advantage):
        words = "algo.advantage=kept keeps attempts by their rewards: nobody would ask this code"
        yield error("imitation", "advantage.name", words, "advantage=default, or algo=grpo")
    for unread in reward_shaping_keys(config):
        words = "has no effect: with algo.advantage=kept an attempt's own reward decides, as it was graded"
        yield warning("imitation", unread, words, f"leave {unread} out, or algo=grpo")


def _keys_of_kept(config: Config) -> Iterator[tuple[str, object, object]]:
    plain = AlgoConfig()
    for name in ("keep_reward", "keep_shortest"):
        yield f"algo.{name}", getattr(config.algo, name), getattr(plain, name)


def reward_shaping_keys(config: Config) -> Iterator[str]:
    """Yields the keys in use that change a reward after its attempt was graded."""
    algo = config.algo
    turns = asdict(config.rollout.turn_rewards)
    yield from (f"rollout.turn_rewards.{name}" for name, reward in turns.items() if reward)
    if algo.overlong_share > 0:
        yield "algo.overlong_share"
    if algo.kl_coef > 0 and algo.kl_in is KlPlace.reward:
        yield "algo.kl_in"
