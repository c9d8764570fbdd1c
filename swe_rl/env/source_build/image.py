"""Makes container images of instances that are built from source, under the names of the official ones.

An image has three layers, each an image of its own: this machine's programs, the environment, the tree.

Invariants:
- An image that is in the engine already is used as it is, whoever made it.
- Nothing is run and nothing is downloaded while an image is made; the registry is not asked.
- An image made here says so by its labels.
"""

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.source_build import environment, tree
from swe_rl.env.source_build.build import Built, build_source
from swe_rl.env.source_build.host_files import loaded_libraries, system_files
from swe_rl.env.source_build.layout import CONDA, ENVIRONMENT, TESTBED, command_variables
from swe_rl.env.source_build.origin import hash_of_file
from swe_rl.env.source_build.tar import write_tar

LABEL = "swe_rl.built_from"  # The label holds distribution, Python and the recipes' versions.
# A change of how images are made counts it up, so that images are made anew.
_RECIPE = 1
_BASE = "swe_rl/base"
_ENVIRONMENT = "swe_rl/environment"
_USERS = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
# Git, shells and lookups of users need these files, which must say nothing of this machine.
_TEXTS = {
    "/etc/passwd": _USERS,
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "/etc/gitconfig": f"[safe]\n\tdirectory = {TESTBED}\n[user]\n\tname = SWE-bench\n\temail = setup@localhost\n",
    "/root/.bashrc": f"source {CONDA}/bin/activate\n",
    "/root/.profile": "[ -f ~/.bashrc ] && . ~/.bashrc\n",
}
# An image has these folders, empty and with these modes.
_EMPTY = {
    "/tmp": 0o1777,
    "/var/tmp": 0o1777,
    "/root": 0o700,
    "/proc": 0o555,
    "/sys": 0o555,
    "/dev": 0o755,
    "/opt": 0o755,
}


class ImageEngine(Protocol):
    """Defines what is asked of a container engine."""

    def has_image(self, name: str) -> bool: ...

    def label_of(self, name: str, label: str) -> str | None:
        """Returns a label of an image that is here, and None where the image does not have it."""
        ...

    def build_image(self, name: str, context: IO[bytes]) -> None:
        """Builds an image of `context`, a tar with a Dockerfile. Raises BuildError."""
        ...


def ensure_image(instance: Instance, cache: Path, engine: ImageEngine, say: Callable[[str], None] = print) -> bool:
    """Makes the instance's image if it is missing or outdated. Returns whether it had to.

    Raises InstanceError, BuildError.
    """
    if not instance.image:
        raise InstanceError(f"{instance.instance_id} has no image name; set env.image_template")
    if engine.has_image(instance.image) and not _is_outdated(instance, engine):
        return False
    if instance.source is None:
        raise InstanceError(
            f"{instance.instance_id}: the image {instance.image} is not in the engine and the row has no column "
            "'source' to make it from; get it with job=images job.images_action=pull"
        )
    built = build_source(instance, cache)
    below = _ensure_environment(built, engine, say)
    recipe = [f"FROM {below}", f"ADD tree.tar {TESTBED}/", f"LABEL {LABEL}={_made_of(instance.source)}"]
    say(f"{instance.instance_id}: building {instance.image}")
    _build_image(engine, instance.image, recipe, "tree.tar", lambda out: write_tar(out, folders={".": built.tree}))
    return True


def _is_outdated(instance: Instance, engine: ImageEngine) -> bool:
    """Tells whether an image was made here in another way than it would be now.

    An image of anybody else's is never outdated.
    """
    label = engine.label_of(instance.image, LABEL)
    return label is not None and instance.source is not None and label != _made_of(instance.source)


def _made_of(source: Source) -> str:
    more = [source.until, source.packages, source.until_of, source.setup, source.archive, source.tree]
    more += [source.optional] if source.optional else []
    digest = f"-{hashlib.sha256(repr(more).encode()).hexdigest()[:8]}" if any(more) else ""
    return f"{source.sdist}-py{source.python}{digest}-{_RECIPE}.{tree.RECIPE}.{environment.RECIPE}"


def _ensure_base(engine: ImageEngine, say: Callable[[str], None]) -> tuple[str, list[Path]]:
    """Returns the name of the base image, made where it is missing, and the files of this machine that are in it."""
    files = system_files()
    # Times say nothing of the content, so they do not count. Of a link, which may be to a folder, its target counts.
    stamp = [(str(path), str(path.readlink()) if path.is_symlink() else hash_of_file(path)) for path in files]
    digest = hashlib.sha256(repr((_RECIPE, stamp, sorted(_TEXTS.items()))).encode()).hexdigest()[:12]
    name = f"{_BASE}:{digest}"
    if not engine.has_image(name):
        say(f"building {name} of this machine's programs ({len(files)} files)")
        recipe = ["FROM scratch", "ADD base.tar /", f"WORKDIR {TESTBED}", 'CMD ["/bin/bash"]']
        _build_image(
            engine, name, recipe, "base.tar", lambda out: write_tar(out, host_files=files, texts=_TEXTS, empty=_EMPTY)
        )
    return name, files


def _ensure_environment(built: Built, engine: ImageEngine, say: Callable[[str], None]) -> str:
    """Returns the name of the environment's image, made upon the base where it is missing.

    The image has the libraries of this machine that the interpreter and its packages were linked to.
    """
    base, files = _ensure_base(engine, say)
    name = f"{_ENVIRONMENT}:{built.environment.key}-{base.partition(':')[2]}"
    if not engine.has_image(name):
        say(f"building {name}")
        settings = [f'ENV {key}="{value}"' for key, value in command_variables(built.version).items()]
        more = sorted(set(_linked_libraries(built.environment.prefix)) - set(files))
        _build_image(
            engine,
            name,
            [f"FROM {base}", "ADD environment.tar /", *settings],
            "environment.tar",
            lambda out: write_tar(
                out,
                host_files=more,
                folders={CONDA: built.environment.folder},
                links={"/usr/bin/python3": f"{ENVIRONMENT}/bin/python3"},
            ),
        )
    return name


def _linked_libraries(prefix: Path) -> Iterator[Path]:
    """Yields libraries outside the environment that its compiled parts need."""
    for path in prefix.rglob("*"):
        if path.is_file() and (".so" in path.name or path.parent.name == "bin"):
            yield from (library for library in loaded_libraries(path) if prefix not in library.parents)


def _build_image(
    engine: ImageEngine, name: str, recipe: list[str], layer: str, write: Callable[[IO[bytes]], None]
) -> None:
    """Builds an image.

    The context is a Dockerfile and one tar, which the engine unpacks. Raises BuildError.
    """
    with tempfile.TemporaryFile() as packed, tempfile.TemporaryFile() as context:
        write(packed)
        size = packed.tell()
        packed.seek(0)
        with tarfile.open(fileobj=context, mode="w") as tar:
            text = ("\n".join(recipe) + "\n").encode()
            member = tarfile.TarInfo("Dockerfile")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
            member = tarfile.TarInfo(layer)
            member.size = size
            tar.addfile(member, packed)
        context.seek(0)
        engine.build_image(name, context)
