"""The tree of an instance is the recorded one, whole, or there is none."""

import dataclasses
import shutil

import pytest

from swe_rl.check.check import check_config
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import InstanceError
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.bugs.workspace import package_folder, prepare_workspace, run_git
from swe_rl.files.disk import DiskError


@pytest.fixture
def instance(tmp_path):
    return BugsEnv(EnvConfig(), tmp_path / "cache").instances("train")[0]


def test_the_commit_is_the_recorded_one(instance, tmp_path):
    prepare_workspace(instance, tmp_path / "tree")
    assert run_git(tmp_path / "tree", "rev-parse", "HEAD") == instance.base_commit
    assert run_git(tmp_path / "tree", "status", "--porcelain") == ""


def test_a_wrong_commit_is_refused_and_leaves_nothing(instance, tmp_path):
    wrong = dataclasses.replace(instance, base_commit="0" * 40)
    with pytest.raises(InstanceError, match=f"{instance.instance_id}.*{'0' * 40}.*job=prepare"):
        prepare_workspace(wrong, tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_patch_of_another_version_is_refused(instance, tmp_path):
    wrong = dataclasses.replace(instance, patch=instance.patch.replace("\n ", "\n nowhere "))
    with pytest.raises(InstanceError, match="git apply"):
        prepare_workspace(wrong, tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(instance, tmp_path):
    """A home that is read-only, say, where the user's cache folder is."""
    (tmp_path / "home").write_text("no folder")
    env = BugsEnv(EnvConfig(), tmp_path / "home" / ".cache" / "swe_rl")
    with pytest.raises(DiskError, match=rf"cannot write {tmp_path}/home/\.cache/.*point paths\.cache"):
        env.workspace(instance)


def test_a_full_disk_is_said_of_the_first_file_alone(instance, tmp_path, monkeypatch):
    def full(source, target, *_, **__):
        raise OSError(28, "No space left on device", source, None, target)

    monkeypatch.setattr(shutil, "copy2", full)
    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, full, False, False))
    env = BugsEnv(EnvConfig(), tmp_path / "full")
    with pytest.raises(DiskError, match=r"No space left on device \(.*point paths\.cache") as caught:
        env.workspace(instance)
    assert len(str(caught.value)) < 600
    assert not [path for path in (tmp_path / "full").rglob("*") if path.is_file()]


def test_another_run_that_was_faster(instance, tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "theirs").touch()
    prepare_workspace(instance, tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["tree"] and (tmp_path / "tree" / "theirs").exists()


def test_the_users_own_git_settings_do_not_matter(instance, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[commit]\n\tgpgsign = true\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "me")
    prepare_workspace(instance, tmp_path / "tree")


@pytest.mark.parametrize("repo", ["django/django", "bugs/train/none", "bugs/../../.."])
def test_a_repository_that_is_not_shipped(repo):
    with pytest.raises(InstanceError, match="embedded packages"):
        package_folder(repo)


def test_splits_and_selections(tmp_path, instance):
    env = BugsEnv(EnvConfig(), tmp_path)
    with pytest.raises(InstanceError, match="no split 'test'"):
        env.instances("test")
    listing = tmp_path / "list.txt"
    listing.write_text(instance.instance_id)
    narrowed = BugsEnv(EnvConfig(instances=str(listing)), tmp_path)
    assert [one.instance_id for one in narrowed.instances("train")] == [instance.instance_id]
    assert len(narrowed.instances("heldout")) == len(env.instances("heldout"))
    assert env.workspace(instance) == env.workspace(instance) and env.workspace(instance).path.is_dir()


def test_one_list_may_name_instances_of_both_splits(tmp_path, instance):
    heldout = BugsEnv(EnvConfig(), tmp_path).instances("heldout")[0].instance_id
    listing = tmp_path / "list.txt"
    listing.write_text(f"{instance.instance_id}\n{heldout}\n")
    env = BugsEnv(EnvConfig(instances=str(listing)), tmp_path)
    assert [each.instance_id for each in env.instances("train")] == [instance.instance_id]
    assert [each.instance_id for each in env.instances("heldout")] == [heldout]
    listing.write_text(f"{instance.instance_id}\n{heldout}\nbugs__none-001\n")
    for split in ("train", "heldout"):
        with pytest.raises(InstanceError, match="none-001 is not among"):
            BugsEnv(EnvConfig(instances=str(listing)), tmp_path).instances(split)


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("listed", ["bugs__nothing*", "bugs__none-001\nbugs__none-002\n", "# nothing yet\n"])
def test_a_list_or_a_pattern_that_means_no_instance_is_refused(tmp_path, split, listed):
    """Also where it is only evaluated: a list of the other split's instances leaves all of this one."""
    listing = tmp_path / "list.txt"
    listing.write_text(listed)
    env = BugsEnv(EnvConfig(instances=listed if "*" in listed else str(listing)), tmp_path)
    with pytest.raises(InstanceError, match=r"env\.instances=.* among the (64|32) instances \(such as bugs__"):
        env.instances(split)


def test_a_check_refuses_the_list_that_a_start_refuses(tmp_path):
    """Of the instances that ship, by this machine's own files."""
    (tmp_path / "list.txt").write_text("bugs__none-001\n")
    for listing in ("bugs__nothing*", f"{tmp_path}/list.txt"):
        config = compose([f"env.instances='{listing}'"]).config
        (finding,) = (one for one in check_config(config) if one.rule_id == "no_instance")
        assert finding.key == "env.instances"
        with pytest.raises(InstanceError, match=r"env\.instances"):
            BugsEnv(config.env, tmp_path).instances("train")
    ids = [one.instance_id for one in BugsEnv(EnvConfig(), tmp_path).instances("heldout")]
    assert not [
        one for one in check_config(compose([f"env.instances='{ids[0]}*'"]).config) if one.rule_id == "no_instance"
    ]
