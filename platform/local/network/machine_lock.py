"""Lock of the machine's network: one cluster of root at a time gives its pods namespaces there.

Two would use the same addresses for the node, the API server and Services.
"""

import fcntl
import os
from pathlib import Path

MACHINE_LOCK = Path("/run/batholith-cluster-network.lock")
"""File that the cluster holds; its content is the data directory."""


def lock_machine(root: Path) -> int:
    """Return the locked file, which the caller closes at the end of the cluster in *root*.

    The kernel releases the lock of a process that dies.

    Raises:
        OSError: another cluster holds it.
    """
    lock = os.open(MACHINE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, os.fsencode(root), 0)
    except BlockingIOError:
        other = os.fsdecode(os.pread(lock, 4096, 0)) or "another data directory"
        os.close(lock)
        raise OSError(
            "--pod-network=namespaces: of one machine's clusters that root starts, one has the "
            f"network namespaces of pods, and it is up in {other}: stop that one, or start this "
            "one under another user"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock
