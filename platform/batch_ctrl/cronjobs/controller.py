"""Controller of batch/v1 CronJobs.

It is for the embedded cluster only: elsewhere kube-controller-manager controls all CronJobs, which
have no ``managedBy``, and both would start, replace and delete the same Jobs.
"""

from ...kube.client.client import Client
from ...machinery.clock import Clock
from ...machinery.cronjobs import controller
from ...machinery.cronjobs.controller import CronJobSettings
from ...machinery.event_recorder import Recorder
from .core_types import KIND, Job


class CronJobController(controller.CronJobController[Job]):
    """Controller of batch/v1 CronJobs; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: CronJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(
            client, kind=KIND, name="cronjob", settings=settings, clock=clock, recorder=recorder
        )
