"""Asks a container engine which images it and a registry have and how large they are, and builds images.

Invariants:
- Every failure leaves as a BuildError that names the image or the engine; the SDK's exceptions stay in here.
- No container is started.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

from swe_rl.config.choices import SandboxKind
from swe_rl.config.engine_address import engine_address
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.images import full_name
from swe_rl.env.source_build.program import BuildError
from swe_rl.errors import one_line

# The engine may be silent for so long within one request: a command of a build can take minutes.
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class DockerEngine:
    """Speaks with Docker's engine, or podman's service, at `address` through Docker's SDK.

    The address is unix:///PATH or tcp://HOST:PORT.
    """

    address: str
    client: Any

    @classmethod
    def of(cls, sandbox: SandboxConfig, environment: Mapping[str, str]) -> "DockerEngine":
        """Returns the engine of sandbox.kind, and Docker's where sandboxes are no containers.

        Raises BuildError and UserError.
        """
        kind = sandbox.kind if sandbox.kind is SandboxKind.podman else SandboxKind.docker
        return cls.connect(engine_address(replace(sandbox, kind=kind), environment))

    @classmethod
    def connect(cls, address: str) -> "DockerEngine":
        """Returns the engine that answers at `address`. Raises BuildError when none does."""
        try:
            import docker
        except ImportError as error:
            raise BuildError("images need Docker's SDK: pip install 'swe_rl[docker]'") from error
        try:
            client = docker.DockerClient(base_url=address, timeout=_TIMEOUT_S)
            client.ping()
        except Exception as error:  # The SDK raises its own errors and those of its HTTP library.
            raise BuildError(
                f"the container engine at {address} does not answer ({one_line(error)}); start it, or name another: "
                "sandbox.host=unix:///PATH"
            ) from error
        return cls(address, client)

    def has_image(self, name: str) -> bool:
        """Tells whether the engine has the image. Raises BuildError."""
        return self.size_bytes(name) is not None

    def label_of(self, name: str, label: str) -> str | None:
        """Returns the image's value of a label, and None for an image without it. Raises BuildError."""
        from docker.errors import DockerException

        try:
            labels = self.client.images.get(name).labels
        except (DockerException, OSError) as error:
            raise BuildError(f"the engine at {self.address} does not describe {name}: {one_line(error)}") from error
        return str(labels[label]) if label in labels else None

    def size_bytes(self, name: str) -> int | None:
        """Returns an image's size with all of its layers, and None for an image that is not here. Raises BuildError."""
        from docker.errors import APIError, DockerException, ImageNotFound

        try:
            return int(self.client.images.get(name).attrs.get("Size") or 0)
        except ImageNotFound:
            return None
        except (APIError, DockerException, OSError) as error:
            raise BuildError(
                f"the engine at {self.address} does not say whether it has {name}: {one_line(error)}"
            ) from error

    def in_registry(self, name: str) -> str:
        """Returns an empty text if the registry has the image, else why not, or why that cannot be known."""
        from docker.errors import DockerException

        try:
            self.client.images.get_registry_data(full_name(name))
        except (DockerException, OSError) as error:
            return one_line(error)
        return ""

    def build_image(self, name: str, context: IO[bytes]) -> None:
        """Builds the image `name` from a tar. Raises BuildError with the engine's words."""
        from docker.errors import DockerException

        try:
            self.client.images.build(fileobj=context, custom_context=True, tag=name, rm=True, forcerm=True, pull=False)
        except (DockerException, OSError) as error:
            raise BuildError(f"{name} cannot be built: {one_line(error)}") from error
