"""Typed builder of Volcano jobs: validated with each call, and equal to a manifest.

.. code-block:: python

    job = (
        Job("train", queue="research")
        .task("worker", image="pytorch:2", replicas=4, cpu=2, memory="4Gi", gpus=1)
        .policy("PodFailed", "RestartJob")
        .plugin("pytorch", "--master=worker")
    )

Each call returns a new builder. The server applies the defaults of fields that are not given.
"""

import copy
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..model import durations, validation
from ..model.field_errors import ErrorList, quote
from ..model.job import POLICY_EVENTS, Action
from ..model.names import JOBS, SCHEDULER_NAME
from .arguments import explicit
from .errors import ManifestError
from .task_builder import (
    Json,
    Quantity,
    TaskOptions,
    amount,
    build_task,
    check_labels,
    check_number,
    quantity_error,
    raise_errors,
    set_fields,
)

POLICY_ACTIONS = (
    Action.ABORT_JOB,
    Action.RESTART_JOB,
    Action.RESTART_TASK,
    Action.RESTART_POD,
    Action.RESTART_PARTITION,
    Action.TERMINATE_JOB,
    Action.COMPLETE_JOB,
    Action.RESUME_JOB,
)


class Job:
    """A Volcano job that is not submitted yet."""

    @explicit
    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        min_available: int | None = None,
        max_retry: int | None = None,
        priority_class: str | None = None,
        ttl_seconds_after_finished: int | None = None,
        suspend: bool | None = None,
        scheduler: str = SCHEDULER_NAME,
    ) -> None:
        """Begin a job; *min_available* is the number of pods that start together, by default all.

        Raises:
            ManifestError: a value is invalid.
        """
        errors = ErrorList()
        errors.add(
            "metadata.name", validation.name_error(name) or validation.dns1123_subdomain_error(name)
        )
        if queue is not None:
            errors.add("spec.queue", validation.dns1123_subdomain_error(queue))
        if namespace is not None:
            errors.add("metadata.namespace", validation.dns1123_label_error(namespace))
        check_labels("metadata", labels, errors)
        numbers = {
            "minAvailable": min_available,
            "maxRetry": max_retry,
            "ttlSecondsAfterFinished": ttl_seconds_after_finished,
        }
        for field, number in numbers.items():
            check_number(f"spec.{field}", number, errors)
        raise_errors(errors)
        metadata = set_fields(
            name=name,
            namespace=namespace,
            labels=dict(labels) if labels else None,
            annotations=dict(annotations) if annotations else None,
        )
        spec = set_fields(
            schedulerName=scheduler,
            queue=queue,
            priorityClassName=priority_class,
            suspend=suspend,
            **numbers,
        )
        self._metadata: Json = metadata
        self._spec: Json = spec

    @explicit
    def task(
        self,
        name: str,
        *,
        image: str,
        replicas: int = 1,
        **options: Unpack[TaskOptions],
    ) -> "Job":
        """Add a task: *replicas* pods with one container, named as the task.

        Args:
            name: of the task.
            image: of the container.
            replicas: number of pods.
            command: program with its arguments.
            args: arguments of the image's own program.
            env: environment variables.
            cpu: requested CPUs, e.g. 2, 0.5 or ``"500m"``.
            memory: requested memory, which is its limit, too, e.g. ``"4Gi"``.
            gpus: number of ``nvidia.com/gpu``.
            requests: further requests by resource.
            limits: further limits by resource.
            ports: container ports by name.
            min_available: pods of this task that must run; by default all.
            max_retry: ``maxRetry`` of the task in the manifest.
            depends_on: tasks that must have started before.
            restart_policy: of the pods: ``Never`` (default), ``OnFailure`` or ``Always``.
            node_selector: labels that nodes must have.
            labels: of the pods.
            annotations: of the pods.
            pod: further fields of the pod's spec, as in a manifest.
            container: further fields of the container, as in a manifest.

        Raises:
            ManifestError: a value is invalid, or there is a task of this name.
        """
        at = f"spec.tasks[{len(self._tasks)}]"
        if any(task["name"] == name for task in self._tasks):
            raise ManifestError([f"{at}.name: Duplicate value: {quote(name)}"])
        task = build_task(at, name, image=image, replicas=replicas, options=options)
        return self._with(tasks=[*self._tasks, task])

    @explicit
    def policy(
        self,
        event: str | Sequence[str] | None = None,
        action: str = Action.RESTART_JOB,
        *,
        exit_code: int | None = None,
        timeout: str | None = None,
        task: str | None = None,
    ) -> "Job":
        """Add a policy: what happens on an event, or on an exit code of a container.

        Args:
            event: one or several events, e.g. ``"PodFailed"``.
            action: e.g. ``"RestartJob"``.
            exit_code: instead of an event.
            timeout: delay of the action in Go's notation, e.g. ``"10m"``.
            task: add it to this task, not to the job.

        Raises:
            ManifestError: a value is invalid, or the task does not exist.
        """
        errors = ErrorList()
        events = [event] if isinstance(event, str) else list(event or ())
        for each in events:
            errors.member("policy.event", each, POLICY_EVENTS)
        errors.member("policy.action", action, POLICY_ACTIONS)
        if bool(events) == (exit_code is not None):
            errors.add("policy", "give either an event or an exit code")
        if exit_code == 0:
            errors.invalid("policy.exitCode", 0, "the exit code of success")
        if timeout is not None:
            try:
                durations.parse(timeout)
            except durations.DurationError as error:
                errors.add("policy.timeout", str(error))
        raise_errors(errors)
        policy = set_fields(
            event=events[0] if len(events) == 1 else None,
            events=events if len(events) > 1 else None,
            exitCode=exit_code,
            action=str(action),
            timeout=timeout,
        )
        if task is None:
            return self._with(policies=[*self._spec.get("policies", ()), policy])
        index = self._index_of(task)
        changed = dict(self._tasks[index])
        changed["policies"] = [*changed.get("policies", ()), policy]
        return self._with(tasks=[*self._tasks[:index], changed, *self._tasks[index + 1 :]])

    def plugin(self, name: str, *arguments: str) -> "Job":
        """Add a job plugin, e.g. ``svc``, ``ssh``, ``env``, ``pytorch``, with its arguments.

        Raises:
            ManifestError: the name is empty, or an argument is no text.
        """
        errors = ErrorList()
        if not name:
            errors.required("spec.plugins")
        for argument in arguments:
            if not isinstance(argument, str):
                errors.invalid(f"spec.plugins[{name}]", argument, "must be text")
        raise_errors(errors)
        return self._with(plugins={**self._spec.get("plugins", {}), name: list(arguments)})

    @explicit
    def volume(
        self,
        mount_path: str,
        *,
        claim: str | None = None,
        size: Quantity | None = None,
        storage_class: str | None = None,
        access_mode: str = "ReadWriteMany",
    ) -> "Job":
        """Mount a volume in all pods: an existing claim, or a new one of *size*.

        Raises:
            ManifestError: a value is invalid.
        """
        errors = ErrorList()
        at = f"spec.volumes[{len(self._spec.get('volumes', ()))}]"
        if not mount_path.startswith("/"):
            errors.invalid(f"{at}.mountPath", mount_path, "must be an absolute path")
        if (claim is None) == (size is None):
            errors.add(at, "give either an existing claim or the size of a new one")
        if claim is not None:
            errors.add(f"{at}.volumeClaimName", validation.dns1123_subdomain_error(claim))
        if size is not None:
            errors.add(f"{at}.volumeClaim.resources.requests.storage", quantity_error(size))
        raise_errors(errors)
        volume: Json = {"mountPath": mount_path}
        if claim is not None:
            volume["volumeClaimName"] = claim
        else:
            volume["volumeClaim"] = set_fields(
                accessModes=[access_mode],
                storageClassName=storage_class,
                resources={"requests": {"storage": amount(size or 0)}},
            )
        return self._with(volumes=[*self._spec.get("volumes", ()), volume])

    def manifest(self) -> Json:
        """Return the manifest, which further calls do not change.

        Raises:
            ManifestError: there is no task, the tasks have too few pods, or a dependency is
                missing.
        """
        errors = ErrorList()
        if not self._tasks:
            errors.required("spec.tasks", "a job has at least one task")
        replicas = sum(task["replicas"] for task in self._tasks)
        minimum = self._spec.get("minAvailable", 0)
        if self._tasks and minimum > replicas:
            text = f"must not exceed the number of pods, {replicas}"
            errors.invalid("spec.minAvailable", minimum, text)
        names = [task["name"] for task in self._tasks]
        for index, task in enumerate(self._tasks):
            for name in task.get("dependsOn", {}).get("name", ()):
                errors.member(f"spec.tasks[{index}].dependsOn.name", name, names)
        raise_errors(errors)
        return copy.deepcopy(
            {
                "apiVersion": JOBS.api_version,
                "kind": JOBS.kind,
                "metadata": self._metadata,
                "spec": self._spec,
            }
        )

    def __repr__(self) -> str:
        tasks = ", ".join(f"{task['replicas']} {task['name']}" for task in self._tasks)
        return f"<Job {self._metadata['name']}: {tasks or 'no tasks'}>"

    def _repr_html_(self) -> str:
        document = {"metadata": self._metadata, "spec": self._spec}
        return f"<pre>{html.escape(json.dumps(document, indent=2))}</pre>"

    @property
    def _tasks(self) -> list[Json]:
        tasks: list[Json] = self._spec.get("tasks", [])
        return tasks

    def _index_of(self, task: str) -> int:
        names = [each["name"] for each in self._tasks]
        if task not in names:
            raise ManifestError([f"policy.task: Not found: {quote(task)}"])
        return names.index(task)

    def _with(self, **changes: Any) -> "Job":
        changed = copy.copy(self)
        changed._spec = {**self._spec, **changes}
        return changed
