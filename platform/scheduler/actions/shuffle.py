"""The ``shuffle`` action: evict the pods that plugins name, for no other pod in particular.

Evictions respect disruption budgets, as all do. One that the API server has refused is tried again
when the plugin names the pod after some time.
"""

from functools import partial

from ..framework.decision import Eviction
from ..framework.plugin_calls import PluginError
from ..framework.preemption import gang_ref
from ..framework.session import Session
from ..plugins.extension_points import VictimTask, VictimTasksPlugin
from ..state.gangs.gang import Task, TaskStatus

_REFUSAL_SECONDS = 10.0
"""For how long an eviction that a budget does not permit is tried."""


def shuffle(session: Session) -> None:
    """Evict the running pods that the plugins name."""
    for plugin in session.victim_task_plugins:
        try:
            named = session.calls.call(plugin, "victim_tasks", partial(_named_by, plugin))
        except PluginError as error:
            session.calls.record(error)
            continue
        for victim in named:
            _evict(session, victim)


def _named_by(plugin: VictimTasksPlugin) -> list[VictimTask]:
    named = [VictimTask(*each) for each in plugin.victim_tasks()]
    for victim in named:
        if not isinstance(victim.task, Task):
            raise TypeError(f"Task expected, not {type(victim.task).__name__}")
    return named


def _evict(session: Session, victim: VictimTask) -> None:
    task, gang = victim.task, victim.task.gang
    if gang is None or task.status is not TaskStatus.RUNNING:
        return
    if session.cache.refused_evictions.get(task.uid, 0.0) > session.cache.cycle_time:
        return
    try:
        with session.statement(gang) as statement:
            statement.evict(task)
            session.commit(gang, statement)
    except PluginError as error:
        session.reject_failed(gang, error)
        return
    session.evictions.append(
        Eviction(
            namespace=task.namespace,
            name=task.name,
            uid=task.uid,
            message=f"{victim.message} (shuffle)",
            gang=gang_ref(gang),
            timeout=_REFUSAL_SECONDS,
        )
    )
