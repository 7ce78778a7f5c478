"""Random histories of CronJobs; their controller is killed, disconnected and lags."""

from support.cronjob_machine import CronJobMachine
from support.cronjob_stateful import KubernetesCronJobWorld, VolcanoCronJobWorld
from support.stateful import stateful_settings


class KubernetesMachine(CronJobMachine):
    """The controller under random operations and faults; checks INV-CRON-1 to INV-CRON-5."""

    world_type = KubernetesCronJobWorld


class VolcanoMachine(CronJobMachine):
    """As above, with CronJobs and Jobs of Volcano."""

    world_type = VolcanoCronJobWorld


TestKubernetesCronJobs = KubernetesMachine.TestCase
TestVolcanoCronJobs = VolcanoMachine.TestCase
TestKubernetesCronJobs.settings = TestVolcanoCronJobs.settings = stateful_settings(steps=25)
