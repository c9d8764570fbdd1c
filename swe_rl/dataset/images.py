"""This module says how the container images of a data set are called, in its rows and at a registry."""

# Docker's engines complete a name without a registry in this way.
HUB = "docker.io"
# Data sets write the `__` of an instance's id in one of these ways in the names of their images.
_SPELLINGS = {"instance_id": "__", "instance_id_s": "_s_", "instance_id_1776": "_1776_"}


def image_of(template: str, instance_id: str) -> str:
    """Returns a template's image name for one instance, with the id in lower case, as image names are.

    For example, `a/b.{instance_id_s}` and `django__django-1` make `a/b.django_s_django-1`.
    """
    name = template
    for field, separator in _SPELLINGS.items():
        name = name.replace(f"{{{field}}}", instance_id.replace("__", separator).lower())
    return name


def full_name(name: str) -> str:
    """Returns an image's name with its registry, and with a tag or a digest.

    For example, `python` becomes `docker.io/library/python:latest`.
    """
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"{HUB}/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"{HUB}/{name}"
    tagged = "@" in name or ":" in name.rpartition("/")[2]
    if tagged:
        return name
    return f"{name}:latest"
