"""The configuration of a running scheduler process, in a ConfigMap that is mounted."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.api_servers import add_node, merge_patch
from support.components import ComponentProcess, component
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.embedded_cluster import batholith
from support.mounted_configmap import MountedConfigMap
from support.polling import wait_until_true

from batholith.model import crds
from batholith.model.names import EVENTS, GROUP_NAME, PODGROUPS, PODS, QUEUES, ROOT_QUEUE
from batholith.scheduler.conf import DEFAULT

pytestmark = pytest.mark.process

WITHOUT_LIMITS = 'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}]}]'


async def submit(server: EmbeddedServer) -> None:
    """A queue of one CPU, and a gang in it that requests two."""
    limits: dict[str, dict[str, object]] = {ROOT_QUEUE: {}, "small": {"capability": {"cpu": 1}}}
    for name, spec in limits.items():
        body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": name}}
        await server.create(QUEUES.path(), body | {"spec": {"weight": 1, **spec}})
        await merge_patch(server, QUEUES.path("", name, "status"), {"status": {"state": "Open"}})
    await add_node(server, "n")
    group = {"apiVersion": PODGROUPS.api_version, "kind": "PodGroup", "metadata": {"name": "g"}}
    spec = {"minMember": 1, "queue": "small", "minResources": {"cpu": 2}}
    await server.create(PODGROUPS.path("default"), group | {"spec": spec})
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "2"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "g-0", "annotations": {GROUP_NAME: "g"}},
        "spec": {"schedulerName": "volcano", "containers": [container]},
    }
    await server.create(PODS.path("default"), pod)


async def reloads(scheduler: ComponentProcess, result: str) -> float:
    """The metric of reloads."""
    _, text = await scheduler.get("metrics", "/metrics")
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "batholith_scheduler_config_reloads_total"
        and sample.labels == {"result": result}
    )


async def test_a_swapped_configmap_wakes_rejected_gangs_and_an_invalid_one_changes_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "mount").mkdir()
    mounted = MountedConfigMap(tmp_path / "mount", DEFAULT)
    async with embedded_server(tmp_path / "server", crds=crds.load()) as server:
        await submit(server)

        async def rejected() -> bool:
            group = await server.get(PODGROUPS.path("default", "g"))
            return "insufficient cpu" in str(group.get("status", {}).get("conditions", ""))

        async def bound() -> bool:
            return bool((await server.get(PODS.path("default", "g-0")))["spec"].get("nodeName"))

        async def events() -> list[tuple[str, str]]:
            found = await server.get(EVENTS.path("default"))
            return [
                (each["reason"], each["message"])
                for each in found["items"]
                if each["involvedObject"]["kind"] == "Queue"
            ]

        async def reported() -> bool:
            return bool(await events())

        arguments = ("--leader-elect=false", "--listen-address=127.0.0.1:0")
        async with component(
            "scheduler",
            f"--scheduler-conf={mounted.file}",
            *("--kubeconfig", str(server.kubeconfig), *arguments),
        ) as scheduler:
            await scheduler.wait_ready()
            await wait_until_true(rejected)

            mounted.replace('actions: "dance"')
            await wait_until_true(reported)
            ((reason, message),) = await events()
            assert reason == "InvalidSchedulerConfiguration" and "'dance'" in message
            assert (await reloads(scheduler, "error"), await reloads(scheduler, "success")) == (
                1,
                0,
            )

            mounted.replace(WITHOUT_LIMITS)
            await wait_until_true(bound)
            scheduler_log = [each["message"] for each in scheduler.log]
            assert "scheduler configuration reloaded" in scheduler_log
            assert await reloads(scheduler, "success") == 1


async def test_a_plugin_that_is_not_implemented_is_disabled_and_reported_unless_strict(
    tmp_path: Path,
) -> None:
    file = tmp_path / "conf"
    file.write_text(DEFAULT + "- plugins: [{name: deviceshare}]\n")
    problem = "disabled plugins, which are not implemented: 'deviceshare' "
    async with embedded_server(tmp_path / "server", crds=crds.load()) as server:
        await submit(server)
        flags = (
            "scheduler",
            f"--scheduler-conf={file}",
            *("--kubeconfig", str(server.kubeconfig)),
            *("--leader-elect=false", "--listen-address=127.0.0.1:0"),
            "--healthz-address=127.0.0.1:0",
        )

        async def reported() -> bool:
            found = await server.get(EVENTS.path("default"))
            return any(
                each["reason"] == "DisabledSchedulerPlugins"
                and each["involvedObject"]["name"] == ROOT_QUEUE
                and problem in each["message"]
                for each in found["items"]
            )

        async with component(*flags) as scheduler:
            await scheduler.wait_ready()
            await wait_until_true(reported)
            status, text = await scheduler.get("health", "/readyz?verbose")
            assert status == 200
            assert f"[-]plugins: {problem}(tiers[2].plugins[0])\n" in text
            _, text = await scheduler.get("metrics", "/metrics")
            assert 'batholith_scheduler_disabled_plugins{plugin="deviceshare"} 1.0' in text
            file.write_text(DEFAULT)

            async def is_passed() -> bool:
                return (await scheduler.get("health", "/readyz/plugins"))[0] == 200

            await wait_until_true(is_passed)
            _, text = await scheduler.get("metrics", "/metrics")
            assert "batholith_scheduler_disabled_plugins{" not in text
    file.write_text(DEFAULT + "- plugins: [{name: deviceshare}]\n")
    outcome = await batholith(*flags, "--strict-conf")
    assert outcome.code == 1
    assert "unimplemented plugin 'deviceshare'" in outcome.err
