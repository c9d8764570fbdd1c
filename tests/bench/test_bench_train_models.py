import pytest

from bench.train_models import OTHERS, config_of, train_flops
from swe_rl.trainer.sharded.flops import layer_weights, pair_flops
from swe_rl.trainer.sharded.materialize import empty_model


def test_a_mixture_is_as_wide_for_a_token_as_its_dense_pair():
    mixture, dense = (config_of(name, 4, 64) for name in ("30b-a3b", "3b-dense"))
    router = mixture.hidden_size * mixture.num_experts
    assert mixture.num_experts == 128 and layer_weights(mixture) == layer_weights(dense) + router
    for config in (mixture, dense):
        assert config.num_hidden_layers == 4 and config.vocab_size == 12672  # 151,936 / 12, up to a multiple of 64
    assert dense.intermediate_size == 8 * 768 and pair_flops(mixture) == pair_flops(dense)


def test_flops_are_six_a_weight_and_token_and_attention_grows_with_the_square():
    config = config_of("14b", None, 64)
    assert 40 * layer_weights(config) == pytest.approx(13.2e9, rel=0.01)
    short = train_flops(config, [1], 0)
    assert short == pytest.approx(6 * 13.2e9, rel=0.01)
    assert train_flops(config, [65536], 0) - 65536 * short == pytest.approx(6 * 40 * 5120 * 65536**2, rel=0.01)
    assert train_flops(config, [], 1) == 6 * 5120 * 151936


@pytest.mark.parametrize("name", ["4b", "30b-a3b"])
def test_flops_of_the_bench_are_those_of_the_trainers_formula(name):
    """The trainer balances rows by a formula of the configuration; the bench counts the weights of a model."""
    config = config_of(name, 2, 64)
    formula = 2 * 3 * layer_weights(config) * 2
    assert train_flops(config, [1], 0) == pytest.approx(formula, rel=0.001)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_another_family_is_cut_to_its_first_layers(name):
    config = config_of(name, 2, 64)
    assert config.num_hidden_layers == 2 and len(config.layer_types) == 2
    assert empty_model(config).config.model_type == OTHERS[name][0]


def test_a_token_of_a_hybrid_attends_in_one_layer_of_four_and_in_windows_of_the_other():
    hybrid, windows = config_of("qwen3.5-9b", 4, 64), config_of("gpt-oss-20b", 2, 64)
    for config, pairs in ((hybrid, 65536**2 / 2), (windows, 65536**2 / 2 + 65536 * 128)):
        of_pair = 4 * config.num_attention_heads * config.head_dim
        grown = train_flops(config, [65536], 0) - 65536 * train_flops(config, [1], 0)
        assert grown == pytest.approx(3 * pairs * of_pair, rel=0.01)


def test_a_token_passes_four_of_32_experts():
    """The card of gpt-oss-20b says 3.61 billion active parameters, with the words and the head."""
    config = config_of("gpt-oss-20b", None, 64)
    passed = train_flops(config, [1], 0) / 6
    assert passed + config.vocab_size * config.hidden_size == pytest.approx(3.61e9, rel=0.03)
