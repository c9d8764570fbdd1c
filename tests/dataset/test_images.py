"""Names of container images."""

import pytest

from swe_rl.dataset.images import full_name, image_of


def test_an_image_s_name_is_lower_case():
    assert image_of("x/{instance_id}", "Foo__Bar-1") == "x/foo__bar-1"
    assert image_of("x/{instance_id_s}", "Foo__Bar-1") == "x/foo_s_bar-1"
    assert image_of("x/{instance_id_1776}", "Foo__Bar-1") == "x/foo_1776_bar-1"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.11", "docker.io/library/python:3.11"),
        ("a/b", "docker.io/a/b:latest"),
        ("docker.io/a/b:latest", "docker.io/a/b:latest"),
        ("ghcr.io/a/b", "ghcr.io/a/b:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("localhost/a:1", "localhost/a:1"),
        ("a/b@sha256:00", "docker.io/a/b@sha256:00"),
    ],
)
def test_full_names(name, full):
    assert full_name(name) == full
    assert full_name(full) == full
