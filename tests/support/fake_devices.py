"""A directory with the devices of another machine, and an ``nvidia-smi`` that reports them."""

from pathlib import Path

from batholith.local.agent.devices.discovery import Discovery

ROW = "{index}, {uuid}, NVIDIA Test, 24564, 00000000:{index:02X}:00.0, 550.1"


def uuid(index: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-0000-{index}"


class FakeDevices:
    """GPUs that tests add and remove; their files are no devices."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self._rows = directory / "rows"
        for each in ("bin", "dev/dri"):
            (directory / each).mkdir(parents=True)
        program = directory / "bin" / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat {self._rows}\n")
        program.chmod(0o755)
        self.set_nvidia()

    @property
    def discovery(self) -> Discovery:
        """The discovery of this directory."""
        return Discovery(self.root)

    def set_nvidia(self, *minors: int) -> None:
        """Have GPUs of NVIDIA whose device files have these numbers."""
        rows = [ROW.format(index=number, uuid=uuid(number)) for number in minors]
        self._rows.write_text("\n".join(rows))
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{each}" for each in minors)):
            (self.root / "dev" / name).write_text(name)

    def add_amd(self, node: int, *, minor: int, unique: int = 0) -> None:
        """Add a node of the topology of AMD's driver; a CPU if *minor* is 0."""
        directory = self.root / "sys/class/kfd/kfd/topology/nodes" / str(node)
        (directory / "mem_banks/0").mkdir(parents=True)
        (directory / "mem_banks/0/properties").write_text(f"heap_type 1\nsize_in_bytes {1 << 34}\n")
        text = f"drm_render_minor {minor}\nunique_id {unique}\ndevice_id 29772\n"
        (directory / "properties").write_text(text)
        (self.root / "dev/kfd").touch()
        if minor:
            (self.root / f"dev/dri/renderD{minor}").touch()
