"""The folder in which a job's parts put what lasts no longer than they do."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.host.scratch import scratch_path
from swe_rl.logger.folder import RunFolder
from swe_rl.run.components import _weights_folder, own_key, scratch_root


def test_the_scratch_folder_is_this_users(tmp_path):
    root = scratch_root(compose([f"paths.scratch={tmp_path / 'fast'}"]).config)
    assert root == scratch_path(str(tmp_path / "fast")) and root.stat().st_mode & 0o777 == 0o700


def test_somebody_elses_scratch_folder_is_the_users_error(tmp_path):
    """In one paragraph: what, where and the way out."""
    (tmp_path / "foreign").mkdir()
    link = scratch_path(str(tmp_path))
    link.symlink_to(tmp_path / "foreign")
    with pytest.raises(
        UserError, match=rf"paths\.scratch={tmp_path}: {link} is a link.*paths\.scratch=FOLDER"
    ) as refused:
        scratch_root(compose([f"paths.scratch={tmp_path}"]).config)
    assert "\n" not in str(refused.value)


ELSEWHERE = ("layout=dp4", "model=qwen3_14b", "hardware=h100x8", "hardware.nodes=2", "layout.engines=12")


def test_weights_for_engines_elsewhere_pass_through_the_runs_own_folder(tmp_path):
    """What a killed process left there is removed by the one that continues the run; nothing is there afterwards."""
    folder, scratch = RunFolder(tmp_path / "run"), tmp_path / "scratch"
    left = folder.weights / "weights_00000003" / "model.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    with _weights_folder(compose(ELSEWHERE).config, folder, scratch) as root:
        assert root == folder.weights and not root.exists()
        (root / "weights_00000004").mkdir(parents=True)
    assert not folder.weights.exists()


@pytest.mark.parametrize("overrides", [(), (*ELSEWHERE, "paths.scratch=/shared/me"), (*ELSEWHERE, "job=rollout")])
def test_other_weights_stay_in_the_scratch_folder(tmp_path, overrides):
    with _weights_folder(compose(overrides).config, RunFolder(tmp_path), tmp_path / "scratch") as root:
        assert root == tmp_path / "scratch"


def test_a_gateway_that_other_machines_reach_has_a_key_of_the_runs_own():
    open_to_all = compose(["gateway.host=0.0.0.0"]).config
    assert own_key(compose().config) is None
    first, second = own_key(open_to_all), own_key(open_to_all)
    assert first and second and first != second
