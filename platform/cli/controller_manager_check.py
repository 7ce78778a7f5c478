"""Start-up check that kube-controller-manager does not reconcile the same Jobs and CronJobs.

It renews its Lease while it runs. A Lease without renewals was left by a process that has ended.
"""

import asyncio

from ..kube.client.client import Client
from ..kube.client.lease import LeaderElectionRecord, LeaseLock
from ..kube.errors import ApiError, DecodeError, NotFoundError
from .start_check import retry_while_unavailable

NAMESPACE, NAME = "kube-system", "kube-controller-manager"
POLL_INTERVAL = 1.0
DEFAULT_LEASE_DURATION = 15


class ControllerManagerRunningError(Exception):
    """kube-controller-manager is running in the cluster, or may be."""


async def ensure_not_running(client: Client, *, required_by: str) -> None:
    """Check that the Lease of kube-controller-manager is not renewed during its duration.

    *required_by* names the flag in the error.

    Raises:
        ControllerManagerRunningError: it is renewed, or cannot be read.
    """
    lock = LeaseLock(client, namespace=NAMESPACE, name=NAME)
    first = await _record(client, lock, required_by)
    if first is None or not first.holder_identity:
        return
    for _ in range(first.lease_duration or DEFAULT_LEASE_DURATION):
        await asyncio.sleep(POLL_INTERVAL)
        if await _record(client, lock, required_by) not in (first, None):
            raise ControllerManagerRunningError(
                f"kube-controller-manager is running in this cluster (Lease {NAME} in {NAMESPACE}, "
                f"held by {first.holder_identity}) and reconciles the same objects; start without "
                f"{required_by}"
            )


async def _record(client: Client, lock: LeaseLock, required_by: str) -> LeaderElectionRecord | None:
    """Return the record of the Lease, None if there is none."""
    try:
        return (await retry_while_unavailable(client, lock.get)).record
    except NotFoundError:
        return None
    except (ApiError, DecodeError) as error:
        raise ControllerManagerRunningError(
            f"cannot check whether kube-controller-manager is running, which {required_by} "
            f"requires: {error}"
        ) from error
