"""The API server is restarted within a test."""

from batholith.testing import ApiServer, Cluster

JOBS = "jobs.batch.volcano.sh"


async def test_a_restarted_server_has_its_objects_at_the_same_address() -> None:
    async with ApiServer() as server:
        url = server.url
        created = await server.create("ConfigMap", {"metadata": {"name": "a"}})
        await server.restart()
        assert server.url == url
        assert await server.get("ConfigMap", "a") == created
        async with server.client() as client:
            assert await client.get_path("/version", view=dict)


async def test_components_go_on_after_a_restart() -> None:
    container = {"name": "main", "image": "busybox", "command": ["sleep", "600"]}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    tasks = [{"name": "worker", "replicas": 1, "template": template}]
    async with Cluster() as cluster:
        await cluster.restart()
        spec = {"schedulerName": "volcano", "tasks": tasks}
        await cluster.create(JOBS, {"metadata": {"name": "train"}, "spec": spec})
        await cluster.wait_for_phase(JOBS, "train", "Running")
        assert any(change.resource.plural == "jobs" for change in cluster.changes)
