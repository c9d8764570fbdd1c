import pytest
import torch

from swe_rl.trainer.output_head import layers_of, output_head
from tests.support.model_families import tiny_of_family


@pytest.mark.parametrize("family", ["gemma2", "granite", "mamba2", "mistral", "nemotron_h"])
def test_logits_in_bfloat16_are_the_models_own(family):
    """Layers of state-space families return float32 here, and their heads are in bfloat16."""
    model = tiny_of_family(family).to(torch.bfloat16)
    ids = torch.arange(3, 35)[None]
    with torch.no_grad():
        hidden = layers_of(model)(input_ids=ids, use_cache=False)[0][0]
        logits = output_head(model)(hidden)
        expected = model(input_ids=ids, use_cache=False).logits[0]
    torch.testing.assert_close(logits.float(), expected.float(), rtol=1e-2, atol=1e-2)
