import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.random_qwen3 import config, facts, write_model
from bench.words import MESSAGE_TOKENS, PROMPT_TOKENS, SPECIAL, TEMPLATE, load_tokenizer, plain_words, text, vocabulary
from swe_rl.model.chat import ChatRenderer


def test_every_id_is_a_word_and_back(model_dir):
    tokenizer = load_tokenizer(model_dir)
    ids = list(range(len(tokenizer)))
    words = tokenizer.decode(ids)
    assert tokenizer.encode(words, add_special_tokens=False) == ids
    assert len(tokenizer) == facts("tiny")["vocab_size"]


@given(seed=st.text(max_size=20), words=st.integers(0, 300))
def test_text_has_so_many_words(seed, words):
    made = text(seed, words, 16384)
    assert len(made.split()) == words
    assert set(made.split()) <= vocabulary(16384).keys()
    assert made == text(seed, words, 16384)


def test_other_seeds_other_texts():
    assert text("a", 20, 1000) != text("b", 20, 1000)
    assert plain_words(1000) + len(vocabulary(1000)) - plain_words(1000) == 1000


def test_the_template_of_the_folder_is_the_gateways(model_dir):
    """A server that renders the messages itself gets the ids that the gateway would send."""
    tokenizer = load_tokenizer(model_dir)
    renderer = ChatRenderer(tokenizer, template=TEMPLATE)
    messages = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3"}]
    ids = renderer.start(messages)
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids
    assert len(ids) == 2 * MESSAGE_TOKENS + PROMPT_TOKENS + 3
    sampled = [40, 41, 42]
    later = [*messages, {"role": "assistant", "content": renderer.decode(sampled)}, {"role": "user", "content": "w9"}]
    extended = [*ids, *sampled, *renderer.extend(sampled, later[3:])]
    assert tokenizer.apply_chat_template(later, add_generation_prompt=True, return_dict=False) == extended


def test_a_vocabulary_needs_room():
    with pytest.raises(ValueError, match="at least 256"):
        vocabulary(len(SPECIAL))


def test_sizes_are_those_of_the_configuration():
    found = config(facts("14b"))
    assert (found["num_hidden_layers"], found["hidden_size"], found["num_key_value_heads"]) == (40, 5120, 8)
    assert not found["tie_word_embeddings"] and config(facts("0_6b"))["tie_word_embeddings"]


def test_transformers_reads_the_folder(tmp_path):
    from transformers import AutoConfig

    write_model(tmp_path, "tiny")
    read = AutoConfig.from_pretrained(tmp_path)
    assert (read.model_type, read.num_hidden_layers, read.head_dim) == ("qwen3", 2, 32)
