"""A cluster with components in the process of a test."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config

from batholith.kube.client.config import load_credentials as load
from batholith.kube.errors import ApiError, ForbiddenError, NotFoundError
from batholith.model.names import (
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINTS,
    JOBS,
    NODES,
    PODGROUPS,
    PODS,
    QUEUES,
    SERVICES,
    Resource,
)
from batholith.testing import ApiServer, Cluster, ComponentError, RequestMatcher

Json = dict[str, Any]
WIDGETS = Resource("example.com", "v1", "widgets", "Widget")
WIDGET_CRD: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"size": {"type": "integer", "default": 1}},
                            }
                        },
                    }
                },
            }
        ],
    },
}


def job(name: str = "train", *, replicas: int = 2, command: str = "sleep 600") -> Json:
    container = {"name": "main", "image": "busybox", "command": command.split()}
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {
        "metadata": {"name": name},
        "spec": {
            "minAvailable": replicas,
            "schedulerName": "volcano",
            "tasks": [{"name": "t", "replicas": replicas, "template": {"spec": spec}}],
        },
    }


async def test_a_job_runs_and_completes() -> None:
    async with Cluster(nodes=2) as cluster:
        await cluster.create(JOBS, job(command="sleep 0.1"))
        done = await cluster.wait_for_phase(JOBS, "train", "Completed")
        assert done["status"]["succeeded"] == 2
        assert [pod["metadata"]["name"] for pod in cluster.pods_of("train")] == [
            "train-t-0",
            "train-t-1",
        ]
        phases = [
            change.object["status"]["state"]["phase"]
            for change in cluster.changes
            if change.resource == JOBS and "status" in change.object
        ]
        assert phases.index("Running") < phases.index("Completed")


async def test_a_gang_that_does_not_fit_stays_pending_as_a_whole() -> None:
    async with Cluster(nodes=1) as cluster:
        big = job(replicas=2)
        main = big["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
        main["resources"] = {"requests": {"cpu": "20"}}
        await cluster.create(JOBS, big)
        await cluster.wait_until(
            lambda: any(
                condition["type"] == "Unschedulable"
                for group in cluster.objects(PODGROUPS).values()
                for condition in group["status"]["conditions"]
            )
        )
        assert not any("nodeName" in pod["spec"] for pod in cluster.objects(PODS).values())


async def test_admission_denies_what_volcano_denies() -> None:
    async with Cluster(controllers=False, scheduler=False, nodes=0) as cluster:
        with pytest.raises(ApiError, match="task name"):
            duplicate = job()
            duplicate["spec"]["tasks"] *= 2
            await cluster.create(JOBS, duplicate)
    async with Cluster(admission=False, controllers=False, scheduler=False, nodes=0) as cluster:
        await cluster.create(JOBS, duplicate)


async def test_components_can_be_left_out() -> None:
    async with Cluster(controllers=False, scheduler=False, nodes=3) as cluster:
        assert sorted(cluster.objects(NODES)) == ["sim-0", "sim-1", "sim-2"]
        assert cluster.objects(QUEUES) == {}
        assert cluster.count(user_agent="batholith-scheduler") == 0


async def test_the_pods_of_simulated_nodes_obey_the_phase_that_a_test_reports() -> None:
    async with Cluster() as cluster:
        await cluster.create(JOBS, job(replicas=1))
        await cluster.wait_for_phase(JOBS, "train", "Running")
        failed = await cluster.set_pod_phase("train-t-0", "Failed", exit_code=3)
        (container,) = failed["status"]["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == 3
        await cluster.wait_for_phase(JOBS, "train", "Failed")
        await cluster.delete(JOBS, "train")
        await cluster.wait_deleted(PODS, "train-t-0")


async def test_a_component_that_ends_fails_the_test_that_waits() -> None:
    with pytest.raises(ComponentError, match="the scheduler ended"):
        async with Cluster() as cluster:
            (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "scheduler"]
            task.cancel()
            await cluster.wait_for_phase(JOBS, "never", "Completed")


async def test_a_component_that_ended_fails_a_test_that_does_not_wait() -> None:
    with pytest.raises(ComponentError, match="the job controller ended"):
        async with Cluster():
            (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "job controller"]
            task.cancel()
            await asyncio.wait([task])


async def test_a_cluster_stops_while_a_request_of_a_component_is_held() -> None:
    async with Cluster() as cluster:
        held = cluster.faults.hold(RequestMatcher("create", "pods"))
        await cluster.create(JOBS, job())
        await held.wait_held()


async def test_faults_meet_the_components(caplog: pytest.LogCaptureFixture) -> None:
    async with Cluster() as cluster:
        lost = cluster.faults.lose_response(RequestMatcher("create", "pods/binding"))
        refused = cluster.faults.error(RequestMatcher("create", "pods", nth=2), 500)
        await cluster.create(JOBS, job())
        await cluster.wait_for_phase(JOBS, "train", "Running")
        assert lost.injected == refused.injected == 1


async def test_definitions_of_users_are_served() -> None:
    async with Cluster(crds=[WIDGET_CRD], controllers=False, scheduler=False, nodes=0) as cluster:
        created = await cluster.create(WIDGETS, {"metadata": {"name": "w"}, "spec": {}})
        assert created["spec"] == {"size": 1}


async def test_the_kubernetes_client_works_with_the_kubeconfig() -> None:
    async with ApiServer() as api:

        def create() -> list[str]:
            connect: Any = kubernetes_config.new_client_from_config
            with connect(str(api.kubeconfig)) as connection:
                core: Any = kubernetes_client.CoreV1Api(connection)
                core.create_namespaced_config_map("default", {"metadata": {"name": "a"}})
                found = core.list_namespaced_config_map("default").items
                return [each.metadata.name for each in found]

        assert "a" in await asyncio.to_thread(create)
        assert load(str(api.kubeconfig)).token == api.credentials.token
        assert api.count("create", CONFIGMAPS) == 1


async def test_state_outlives_a_server_with_a_directory(tmp_path: Path) -> None:
    for start in range(2):
        async with ApiServer(data_dir=tmp_path / "data", crds=[WIDGET_CRD]) as api:
            if not start:
                await api.create(WIDGETS, {"metadata": {"name": "w"}})
            assert (await api.get(WIDGETS, "w"))["metadata"]["name"] == "w"


async def test_servers_of_a_process_share_nothing_but_keys() -> None:
    async with ApiServer() as one, ApiServer() as other:
        await one.create(CONFIGMAPS, {"metadata": {"name": "a"}})
        with pytest.raises(NotFoundError):
            await other.get(CONFIGMAPS, "a")
        assert one.url != other.url


async def test_temporary_state_is_removed() -> None:
    async with ApiServer() as api:
        directory = api.kubeconfig.parent
        assert directory.is_dir()
    assert not directory.exists()


async def test_put_and_remove_pass_by_the_rules_of_the_server() -> None:
    async with ApiServer() as api, api.client() as client:
        api.put(PODS, "p", namespace="nowhere", metadata={"finalizers": ["a/b"]}, spec={"x": 1})
        assert api.objects(PODS)["nowhere/p"]["spec"] == {"x": 1}
        events = client.watch(PODS, view=dict)
        assert (await anext(events)).object["spec"] == {"x": 1}
        api.put(PODS, "p", namespace="nowhere", spec={"x": None, "y": 2})
        assert (await anext(events)).object["spec"] == {"y": 2}
        assert api.remove(PODS, "p", namespace="nowhere")
        assert (await anext(events)).type == "DELETED"
        assert not api.remove(PODS, "p", namespace="nowhere")
        assert [change.type for change in api.changes if change.resource == PODS] == [
            "ADDED",
            "MODIFIED",
            "DELETED",
        ]
        await events.aclose()


async def test_patches_and_refusals_are_those_of_the_server() -> None:
    async with ApiServer() as api:
        await api.create(CONFIGMAPS, {"metadata": {"name": "a"}})
        assert (await api.patch(CONFIGMAPS, "a", {"data": {"k": "v"}}))["data"] == {"k": "v"}
        with pytest.raises(NotFoundError):
            await api.create(CONFIGMAPS, {"metadata": {"name": "a"}}, namespace="nowhere")
        with pytest.raises(ForbiddenError):
            await api.delete(Resource("", "v1", "namespaces", "Namespace", False), "default")


def test_a_server_that_is_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        _ = ApiServer().url


async def test_a_resource_that_is_not_served_is_named() -> None:
    async with ApiServer() as api:
        with pytest.raises(LookupError, match=r"widgets of example\.com/v1 are not served"):
            api.objects(WIDGETS)


async def test_a_request_sees_what_was_put_before_it() -> None:
    async with ApiServer() as api, api.client() as client:
        for number in range(50):
            api.put(CONFIGMAPS, "a", data={"number": str(number)})
            found = await client.get(CONFIGMAPS, "a", namespace="default", view=dict)
            assert found["data"] == {"number": str(number)}
            api.put(CONFIGMAPS, f"b-{number}")
            assert (await api.get(CONFIGMAPS, f"b-{number}"))["kind"] == "ConfigMap"


async def test_deployments_run_and_services_have_endpoints() -> None:
    labels = {"app": "web"}
    container = {"name": "c", "image": "nginx", "ports": [{"name": "http", "containerPort": 8080}]}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    ports = [{"port": 80, "targetPort": "http"}]
    async with Cluster() as cluster:
        await cluster.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
        service = {"selector": labels, "ports": ports}
        await cluster.create(SERVICES, {"metadata": {"name": "web"}, "spec": service})
        await cluster.wait_for(
            DEPLOYMENTS, "web", lambda obj: (obj.get("status") or {}).get("availableReplicas") == 2
        )
        await cluster.wait_for(
            ENDPOINTS,
            "web",
            lambda obj: [len(each["addresses"]) for each in obj.get("subsets") or ()] == [2],
        )
