"""The folder in which a job's parts put what lasts no longer than they do."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.host.scratch import scratch_path
from swe_rl.job.components import own_key, scratch_root


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


def test_a_gateway_that_other_machines_reach_has_a_key_of_the_runs_own():
    open_to_all = compose(["gateway.host=0.0.0.0"]).config
    assert own_key(compose().config) is None
    first, second = own_key(open_to_all), own_key(open_to_all)
    assert first and second and first != second
