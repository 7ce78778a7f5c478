"""Objects and selections of streams under test, and their events."""

from dataclasses import dataclass

import msgspec


class Obj(msgspec.Struct, frozen=True):
    key: str
    uid: str
    phase: str
    version: int


@dataclass(frozen=True)
class ByPhase:
    phase: str = ""

    @property
    def digest(self) -> str:
        return f"jobs-{self.phase.lower()}"

    def matches(self, row: Obj) -> bool:
        return self.phase in ("", row.phase)


ALL, RUNNING = ByPhase(), ByPhase("Running")


def events(chunk: bytes) -> list[dict[str, str]]:
    found = []
    for block in chunk.decode().strip("\n").split("\n\n"):
        lines = [line.partition(": ")[::2] for line in block.split("\n") if line[0] != ":"]
        found.append(dict(lines))
    return found


def obj(key: str, phase: str = "Running", *, version: int = 1, uid: str = "u") -> Obj:
    return Obj(key=key, uid=uid, phase=phase, version=version)
