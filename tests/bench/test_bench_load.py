import pytest

from bench.load import LoadOptions, first_messages, make_load, observation
from bench.words import TEMPLATE, load_tokenizer
from swe_rl.config.schema import RolloutConfig
from swe_rl.model.chat import ChatRenderer
from swe_rl.router.simulation.workload import AGENT_LOAD, draw_workload


def test_the_load_is_the_simulators():
    load = make_load(LoadOptions(programs=20))
    rollout = RolloutConfig(
        prompts_per_step=20,
        n=1,
        max_turns=64,
        max_prompt_tokens=8192,
        max_trajectory_tokens=32768,
        max_turn_tokens=4096,
        command_timeout_s=60.0,
    )
    drawn = draw_workload(AGENT_LOAD, rollout, 0).steps[0]
    assert [program.turns[1:] for program in load.programs] == [program.turns[1:] for program in drawn]
    assert {len(program.turns) for program in load.programs} <= set(range(8, 17))
    assert max(turn.tool_s for program in load.programs for turn in program.turns) <= 30.0


def test_digest():
    small = LoadOptions(programs=4)
    assert make_load(small).digest == make_load(small).digest
    others = [LoadOptions(programs=4, seed=1), LoadOptions(programs=5), LoadOptions(programs=4, tool_scale=0.5)]
    others.append(LoadOptions(programs=4, sampled_median=150.0))
    assert len({make_load(options).digest for options in [small, *others]}) == 5


def test_scale_shrinks_programs_and_turns():
    whole, half = make_load(LoadOptions(programs=40)), make_load(LoadOptions(programs=40, scale=0.5))
    assert len(half.programs) == 20
    for program, longer in zip(half.programs, whole.programs, strict=False):
        assert program.turns == longer.turns[: -(-len(longer.turns) // 2)]


def test_lognormal_sampled_tokens():
    load = make_load(LoadOptions(programs=200, sampled_median=150.0, sampled_sigma=0.5))
    out = sorted(turn.out_tokens for program in load.programs for turn in program.turns)
    assert out[len(out) // 2] == pytest.approx(150, rel=0.1)


@pytest.mark.parametrize("token_scale", [1.0, 0.02, 0.0001])
def test_prompts_have_exactly_the_drawn_tokens(model_dir, token_scale):
    renderer = ChatRenderer(load_tokenizer(model_dir), template=TEMPLATE)
    load = make_load(LoadOptions(programs=2, samples_per_prompt=2, token_scale=token_scale))
    one, other = load.programs
    assert first_messages(one, 0, 16384) == first_messages(other, 0, 16384)
    for program in load.programs:
        ids = renderer.start(first_messages(program, 0, 16384))
        held = 0
        for number, turn in enumerate(program.turns):
            if number:
                ids += renderer.extend([99], [observation(program, number, 0, 16384)])
            assert len(ids) == held + turn.new_in_tokens
            ids += [99] * turn.out_tokens
            held = len(ids)
        assert held == program.total_tokens


def test_tools_of_siblings_say_different_things():
    one, other = make_load(LoadOptions(programs=2, samples_per_prompt=2)).programs
    assert observation(one, 1, 0, 1000) != observation(other, 1, 0, 1000)
