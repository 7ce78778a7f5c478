"""What the machine of a node lacks for the isolation of pods; checked before the node starts."""

import os
import shutil

from ..local.agent.runtime.mounting import lacks_sandbox_support

NO_SANDBOX_FOR_ROOT = (
    "WARNING: this machine does not support the sandbox: pods will run as root, with all "
    "privileges of root"
)
NO_SANDBOX = (
    "WARNING: this machine permits no user namespaces, and the program bwrap is missing (Debian's "
    "package bubblewrap): pods will be able to read and write all files of your user, and will "
    "not find one another by name"
)


def isolation_warnings() -> list[str]:
    """Return a warning if pods would run without a sandbox.

    Some machines permit user namespaces to bubblewrap alone. Whether it works there is found out by
    the agent, which records events on the Node.
    """
    if not lacks_sandbox_support():
        return []
    if os.geteuid() == 0:
        return [NO_SANDBOX_FOR_ROOT]
    return [] if shutil.which("bwrap") else [NO_SANDBOX]
