"""This module reads what nvidia-smi says about the GPUs, and which of them CUDA_VISIBLE_DEVICES leaves.

Invariants:
- A value that the driver does not know (`[N/A]`) is None, not zero.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from xml.etree import ElementTree

from swe_rl.files.lines import lines_of
from swe_rl.host.program import COMMAND_S, Completed, Unanswered

MIB = 1024**2
_FIELDS = "index,uuid,name,memory.total,memory.used,mig.mode.current"
_CARD = re.compile(r"^GPU \d+: (.+) \(UUID: ")
_SLICE = re.compile(r"^\s+MIG\s+(?:\d+c\.)?(\d+)g\.(\d+)gb\S*\s.*UUID:\s*(MIG-[^)\s]+)")

# Matches an entry of CUDA_VISIBLE_DEVICES.
_ENTRY = re.compile(r"\d+|(?:GPU|MIG)-.*")
_DEVICE = re.compile(r"^\s+MIG\s+\S+\s+Device\s+(\d+):.*UUID:\s*(MIG-[^)\s]+)")


class DriverError(Exception):
    """There is no driver, or it does not work; the text says which."""


class HasUuid(Protocol):
    @property
    def uuid(self) -> str: ...


Device = TypeVar("Device", bound=HasUuid)


class RunsPrograms(Protocol):
    def run(self, command: Sequence[str], timeout_s: float = COMMAND_S) -> Completed | None:
        """Runs a program. Returns None if there is no such program. Raises Unanswered."""
        ...


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str
    memory_mib: int | None
    used_mib: int | None
    mig: bool

    @property
    def label(self) -> str:
        if self.uuid.startswith("MIG-"):
            return f"MIG slice {self.uuid}"
        return f"GPU {self.index}"

    @property
    def memory_gb(self) -> float | None:
        if self.memory_mib is None:
            return None
        return self.memory_mib * MIB / 1e9


@dataclass(frozen=True, slots=True)
class Slice:
    """Describes a MIG device, such as `1g.20gb` of the card `name`. It has so many of the card's seven compute
    slices."""

    uuid: str
    memory_gb: float
    sevenths: int
    name: str


def read_gpus(system: RunsPrograms) -> list[Gpu]:
    """Returns the GPUs of this machine. Raises DriverError, or Unanswered for a driver that hangs."""
    text = _ask_driver(system, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
    return [_parse_gpu(line) for line in lines_of(text, ends=False) if line.count(",") >= 5]


def read_slices(system: RunsPrograms) -> list[Slice]:
    """Returns the MIG slices in the driver's order. Raises DriverError or Unanswered."""
    slices: list[Slice] = []
    card = ""
    for line in lines_of(_ask_driver(system, "-L"), ends=False):
        if whole := _CARD.match(line):
            card = whole[1]
        elif part := _SLICE.match(line):
            slices.append(Slice(part[3], float(part[2]), int(part[1]), card))
    return slices


def read_slice_memory(system: RunsPrograms) -> list[Gpu]:
    """Returns each MIG slice as if it were a GPU, by its own UUID. Raises DriverError or Unanswered."""
    names = _slice_names(_ask_driver(system, "-L"))
    try:
        cards = ElementTree.fromstring(_ask_driver(system, "-q", "-x")).findall("gpu")
    except ElementTree.ParseError as error:
        raise Unanswered(f"nvidia-smi -q -x is no XML: {error}") from error
    gpus = []
    for number, card in enumerate(cards):
        for device in card.findall("mig_devices/mig_device"):
            index = device.findtext("index", "").strip()
            if uuid := names.get((number, index)):
                total, used = (_read_mib(device, name) for name in ("total", "used"))
                gpus.append(Gpu(int(index), uuid, card.findtext("product_name", ""), total, used, mig=False))
    return gpus


def _read_mib(device: ElementTree.Element, name: str) -> int | None:
    """Reads a number such as `19968 MiB`."""
    return _parse_number(device.findtext(f"fb_memory_usage/{name}", "").partition(" ")[0])


def _slice_names(listing: str) -> dict[tuple[int, str], str]:
    """Maps the card's number in the listing and the slice's on it to the slice's UUID."""
    names: dict[tuple[int, str], str] = {}
    card = -1
    for line in lines_of(listing, ends=False):
        if _CARD.match(line):
            card += 1
        elif part := _DEVICE.match(line):
            names[card, part[1]] = part[2]
    return names


def visible_devices(text: str | None) -> list[str] | None:
    """Returns the entries of the variable as CUDA reads it: what follows an entry that names no device is hidden.
    Returns None if the variable is not set."""
    if text is None:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not _ENTRY.fullmatch(entry):
            break
        entries.append(entry)
    return entries


def only_visible(gpus: Sequence[Gpu], entries: Sequence[str] | None) -> list[Gpu]:
    """Returns the GPUs that the entries show. Entries are indices or the beginnings of UUIDs; a MIG entry does not tell
    its GPU, so all stay."""
    if entries is None or any(entry.startswith("MIG-") for entry in entries):
        return list(gpus)
    seen: list[Gpu] = []
    for entry in entries:
        named = [gpu for gpu in gpus if _is_index(entry, gpu.index) or _uuid_begins(gpu.uuid, entry, "GPU-")]
        if not named:
            # CUDA shows nothing after a device that is not there.
            break
        seen += named
    return [gpu for gpu in gpus if gpu in seen]


def visible_slices(slices: Sequence[Device], entries: Sequence[str] | None) -> list[Device]:
    """Returns the slices that the entries name, or all if no entry names a slice."""
    if entries is None or not any(entry.startswith("MIG-") for entry in entries):
        return list(slices)
    return [part for part in slices if any(_uuid_begins(part.uuid, entry, "MIG-") for entry in entries)]


def _is_index(entry: str, index: int) -> bool:
    return entry.isdecimal() and int(entry) == index


def _uuid_begins(uuid: str, entry: str, kind: str) -> bool:
    return entry.startswith(kind) and uuid.startswith(entry)


def _parse_gpu(line: str) -> Gpu:
    index, uuid, *name, total, used, mig = (part.strip() for part in line.split(","))
    return Gpu(int(index), uuid, ",".join(name), _parse_number(total), _parse_number(used), mig == "Enabled")


def _parse_number(text: str) -> int | None:
    if text.isdigit():
        return int(text)
    return None


def _ask_driver(system: RunsPrograms, *options: str) -> str:
    done = system.run(["nvidia-smi", *options])
    if done is None:
        raise DriverError("there is no `nvidia-smi` on PATH, so no NVIDIA driver on this machine")
    if done.status != 0:
        raise DriverError(f"nvidia-smi fails: {done.reason}")
    return done.stdout
