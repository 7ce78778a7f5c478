"""Discovery of GPUs: NVIDIA's by ``nvidia-smi``, AMD's by ``/sys``.

A device is described without reference to how it is offered to pods: today as an extended resource
of the node.
"""

import csv
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

NVIDIA, AMD = "nvidia.com", "amd.com"
FAKE_ROOT_VARIABLE = "BATHOLITH_FAKE_DEVICES"
"""Environment variable of tests: a directory with ``bin``, ``dev``, ``proc`` and ``sys`` of another
machine, in which devices are looked for."""

_QUERY = ("index", "uuid", "name", "memory.total", "pci.bus_id", "driver_version")
_TIMEOUT = 20.0
"""Seconds that ``nvidia-smi`` may take: without its daemon it initializes all GPUs."""

_NVIDIA_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_MIB = 1 << 20
_LOCAL_MEMORY = ("1", "2")
"""Types of memory banks that are on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of the machine."""

    driver: str
    """`NVIDIA` or `AMD`."""

    name: str
    """Name that the device keeps over reboots, such as its UUID."""

    index: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    memory: int = 0
    """Bytes of the memory on the device; 0 if unknown."""

    files: tuple[str, ...] = ()
    """Its files below ``/dev``, which a container needs to use it."""

    @property
    def resource(self) -> str:
        """The extended resource as which it is counted."""
        return f"{self.driver}/gpu"


@dataclass(frozen=True, slots=True)
class Discovery:
    """Finds the devices of the machine whose root directory is *root*."""

    root: Path = Path("/")

    def devices(self) -> list[Device]:
        """Return the devices that work, in the order of their indexes; blocks for seconds."""
        return [*self._nvidia(), *self._amd()]

    def path(self, file: str) -> str:
        """Return the path of a file of a device on this machine."""
        return str(self.root / "dev" / file)

    def _exists(self, file: str) -> bool:
        return (self.root / "dev" / file).exists()

    # --- NVIDIA -----------------------------------------------------------------------------

    def _nvidia(self) -> Iterator[Device]:
        shared = tuple(filter(self._exists, _NVIDIA_SHARED))
        for row in self._query_nvidia():
            index, uuid, product, memory, bus, version = row
            minor = self._nvidia_minor(bus, default=index)
            if not self._exists(f"nvidia{minor}"):
                log.warning("no file of GPU", extra={"gpu": uuid, "file": f"nvidia{minor}"})
                continue
            yield Device(
                driver=NVIDIA,
                name=uuid,
                index=int(index),
                attributes={"productName": product, "pciBusID": bus, "driverVersion": version},
                memory=int(memory) * _MIB if memory.isdigit() else 0,
                files=(f"nvidia{minor}", *shared),
            )

    def _query_nvidia(self) -> list[list[str]]:
        search = None if self.root == Path("/") else str(self.root / "bin")
        program = shutil.which("nvidia-smi", path=search)
        if program is None:
            return []
        argv = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(  # noqa: S603 - no text of a user
                argv, capture_output=True, text=True, timeout=_TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot query GPUs", extra={"error": str(error)})
            return []
        rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
        valid = [row for row in rows if len(row) == len(_QUERY) and row[0].isdigit() and row[1]]
        return sorted(valid, key=lambda row: int(row[0]))

    def _nvidia_minor(self, bus: str, *, default: str) -> str:
        """Return the number of the device file of the GPU at a PCI address."""
        # nvidia-smi has a domain of eight digits, the driver's directory one of four.
        name = bus.lower()[-12:]
        with suppress(OSError):
            text = (self.root / "proc/driver/nvidia/gpus" / name / "information").read_text()
            for line in text.splitlines():
                key, _, value = line.partition(":")
                if key == "Device Minor" and value.strip().isdigit():
                    return value.strip()
        return default

    # --- AMD --------------------------------------------------------------------------------

    def _amd(self) -> Iterator[Device]:
        if not self._exists("kfd"):
            return
        index = 0
        for node in self._amd_nodes():
            properties = _properties(node / "properties")
            minor = properties.get("drm_render_minor", "0")
            if minor == "0":
                continue  # a CPU
            number, index = index, index + 1
            file = f"dri/renderD{minor}"
            if not self._exists(file):
                log.warning("no file of GPU", extra={"gpu": node.name, "file": file})
                continue
            unique = int(properties.get("unique_id", "0"))
            yield Device(
                driver=AMD,
                name=f"GPU-{unique:016x}" if unique else f"kfd-{node.name}",
                index=number,
                attributes={
                    key: properties[field]
                    for key, field in (("deviceID", "device_id"), ("target", "gfx_target_version"))
                    if field in properties
                },
                memory=_amd_memory(node),
                files=("kfd", file),
            )

    def _amd_nodes(self) -> list[Path]:
        directory = self.root / "sys/class/kfd/kfd/topology/nodes"
        if not directory.is_dir():
            return []
        found = [each for each in directory.iterdir() if each.name.isdigit()]
        return sorted(found, key=lambda each: int(each.name))


def discovery_from_environment() -> Discovery:
    """Return the discovery of this machine, or of the directory in `FAKE_ROOT_VARIABLE`."""
    return Discovery(Path(os.environ.get(FAKE_ROOT_VARIABLE) or "/"))


def _properties(file: Path) -> dict[str, str]:
    with suppress(OSError):
        rows = (line.split() for line in file.read_text().splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[1].isdigit()}
    return {}


def _amd_memory(node: Path) -> int:
    banks = (_properties(each) for each in sorted(node.glob("mem_banks/*/properties")))
    local = (bank for bank in banks if bank.get("heap_type") in _LOCAL_MEMORY)
    return sum(int(bank.get("size_in_bytes", "0")) for bank in local)
