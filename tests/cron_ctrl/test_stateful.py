"""Random histories of Volcano's CronJobs; their controller is killed, disconnected and lags."""

from support.cronjob_machine import CronJobMachine
from support.cronjob_stateful import VolcanoCronJobWorld
from support.stateful import stateful_settings


class Machine(CronJobMachine):
    """The controller under random operations and faults; checks INV-CRON-1 to INV-CRON-5."""

    world_type = VolcanoCronJobWorld


TestCronJobMachine = Machine.TestCase
TestCronJobMachine.settings = stateful_settings(steps=25)
