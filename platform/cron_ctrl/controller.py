"""Controller of Volcano's CronJobs."""

from ..kube.client.client import Client
from ..machinery.clock import Clock
from ..machinery.cronjobs import controller
from ..machinery.cronjobs.controller import CronJobSettings
from ..machinery.event_recorder import Recorder
from .core_types import KIND, Job


class CronJobController(controller.CronJobController[Job]):
    """Controller of Volcano's CronJobs; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: CronJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(
            client,
            kind=KIND,
            name="volcano-cronjob",
            settings=settings,
            clock=clock,
            recorder=recorder,
        )
