"""Random histories of batch/v1 CronJobs, with their controller killed, disconnected and lagging."""

from support.cronjob_machine import CronJobMachine
from support.cronjob_stateful import BatchCronJobWorld
from support.stateful import stateful_settings


class Machine(CronJobMachine):
    """The controller under random operations and faults; checks INV-CRON-1 to INV-CRON-5."""

    world_type = BatchCronJobWorld


TestCronJobMachine = Machine.TestCase
TestCronJobMachine.settings = stateful_settings(steps=25)
