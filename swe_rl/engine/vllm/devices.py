"""Says which GPUs a server sees: the placement's numbers, in the names that this process was given.

Invariants:
- A server never sees a device outside this process's own CUDA_VISIBLE_DEVICES; one that hides all leaves none. Names
  (MIG-..., GPU-...) are passed on as they are.
- A slice of a MIG partition has no number of its own in CUDA: it is always called by its name.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence

from swe_rl.errors import UserError
from swe_rl.host import gpus as host_gpus
from swe_rl.layout.placement import PlacedGpu

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_MIG = re.compile(r"\(UUID:\s*(MIG-[^)\s]+)\)")


class DeviceError(UserError):
    """The GPUs that the layout wants are not there."""


def visible_devices(
    gpus: Sequence[PlacedGpu],
    environ: Mapping[str, str],
    *,
    mig: bool = False,
    list_devices: Callable[[], str] | None = None,
) -> str:
    """Returns the value of CUDA_VISIBLE_DEVICES for a server on `gpus` of this node. Raises DeviceError.

    `list_devices` gives the text of `nvidia-smi -L`; it is asked only for MIG slices that the environment does not
    name.
    """
    names = host_gpus.visible_devices(environ.get(_VARIABLE))
    if mig and names != [] and not any(name.startswith("MIG-") for name in names or ()):
        names = mig_names((list_devices or _nvidia_smi)())
        if not names:
            raise DeviceError(
                "hardware.mig=true, but neither CUDA_VISIBLE_DEVICES nor `nvidia-smi -L` names a MIG slice here; "
                "start the run inside the job that was given the slices, or choose another hardware option"
            )
    if names is None:
        return ",".join(str(gpu.index) for gpu in gpus)
    missing = [gpu.index for gpu in gpus if gpu.index >= len(names)]
    if missing:
        raise DeviceError(
            f"The layout puts an engine on GPU {missing[0]} of this node, but this process sees {len(names)} "
            f"({_VARIABLE}={environ.get(_VARIABLE, 'unset')}): ask for more GPUs, or take a smaller layout"
        )
    return ",".join(names[gpu.index] for gpu in gpus)


def slice_number(name: str, environ: Mapping[str, str], *, list_devices: Callable[[], str] | None = None) -> str:
    """Returns `0` for the first MIG slice that CUDA lists; no other has a number. It is for programs that know no
    names.

    Raises DeviceError for the others.
    """
    visible = host_gpus.visible_devices(environ.get(_VARIABLE)) or ()
    names = [device for device in visible if device.startswith("MIG-")] or mig_names((list_devices or _nvidia_smi)())
    if names[:1] == [name]:
        return "0"
    raise DeviceError(
        f"This vLLM does not take the name of a MIG slice, and {name} is not the first one here, so that it has no "
        "number: give the engine the first slice (layout=mig2 does), or take a newer vLLM"
    )


def mig_names(listing: str) -> list[str]:
    """Returns the names of MIG slices in the text of `nvidia-smi -L`, in its order."""
    return _MIG.findall(listing)


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
