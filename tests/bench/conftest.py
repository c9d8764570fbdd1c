import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    from bench.random_qwen3 import write_model

    folder = tmp_path_factory.mktemp("model")
    write_model(folder, "tiny")
    return folder
