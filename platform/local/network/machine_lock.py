"""Lock of a network: one cluster of root at a time gives its pods network namespaces there.

Two would use the same addresses for the node, the API server and Services. Clusters that run in
different network namespaces themselves do not see one another.
"""

import fcntl
import os
from pathlib import Path

LOCKS = Path("/run")
"""Directory of the files, one for each network; the content is the data directory."""

_OWN_NETWORK = "/proc/self/ns/net"


def lock_machine(root: Path) -> int:
    """Return the locked file, which the caller closes at the end of the cluster in *root*.

    The kernel releases the lock of a process that dies.

    Raises:
        OSError: another cluster holds it.
    """
    path = LOCKS / f"batholith-cluster-network-{os.stat(_OWN_NETWORK).st_ino}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
