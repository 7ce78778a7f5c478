"""The builder of jobs: equal to manifests, admitted by the server, strict about mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from batholith.client import Job, ManifestError

ROOT = Path(__file__).parents[2]


def test_the_example_is_equal_to_its_manifest() -> None:
    built = (
        Job("hello", min_available=3)
        .plugin("env")
        .plugin("svc")
        .task(
            "greeter",
            image="busybox",
            replicas=3,
            command=["sh", "-c", 'echo "hello from $VC_TASK_INDEX"; sleep 5'],
            cpu="500m",
            requests={"memory": "64Mi"},
            container={"name": "main"},
        )
    )
    text = (ROOT / "docs/examples/hello-gang.yaml").read_text()
    assert built.manifest() == yaml.safe_load(text)


def test_every_argument_is_in_the_manifest() -> None:
    built = (
        Job(
            "train",
            queue="research",
            namespace="team",
            labels={"a": "b"},
            annotations={"note": "x"},
            min_available=2,
            max_retry=5,
            priority_class="high",
            ttl_seconds_after_finished=60,
            suspend=True,
            scheduler="other",
        )
        .task("master", image="i", min_available=1, max_retry=2, restart_policy="OnFailure")
        .task(
            "worker",
            image="i",
            replicas=4,
            args=["--epochs", "3"],
            env={"A": 1, "B": "x"},
            cpu=2,
            memory="4Gi",
            gpus=1,
            limits={"cpu": 4},
            ports={"web": 8080},
            node_selector={"zone": "a"},
            depends_on=["master"],
            labels={"c": "d"},
            annotations={"e": "f"},
            pod={"hostNetwork": True},
            container={"workingDir": "/tmp"},
        )
        .policy("PodFailed", "RestartJob", timeout="1m")
        .policy(["PodEvicted", "Unknown"], "AbortJob")
        .policy(exit_code=3, action="TerminateJob", task="worker")
        .plugin("pytorch", "--master=master", "--worker=worker")
        .volume("/data", claim="shared")
        .volume("/scratch", size="1Gi", storage_class="fast", access_mode="ReadWriteOnce")
    )
    assert built.manifest() == yaml.safe_load(
        """
        apiVersion: batch.volcano.sh/v1alpha1
        kind: Job
        metadata:
          {name: train, namespace: team, labels: {a: b}, annotations: {note: x}}
        spec:
          schedulerName: other
          queue: research
          priorityClassName: high
          suspend: true
          minAvailable: 2
          maxRetry: 5
          ttlSecondsAfterFinished: 60
          tasks:
            - name: master
              replicas: 1
              minAvailable: 1
              maxRetry: 2
              template:
                spec:
                  restartPolicy: OnFailure
                  containers: [{name: master, image: i}]
            - name: worker
              replicas: 4
              dependsOn: {name: [master]}
              policies: [{exitCode: 3, action: TerminateJob}]
              template:
                metadata: {labels: {c: d}, annotations: {e: f}}
                spec:
                  restartPolicy: Never
                  nodeSelector: {zone: a}
                  hostNetwork: true
                  containers:
                    - name: worker
                      image: i
                      args: [--epochs, "3"]
                      env: [{name: A, value: "1"}, {name: B, value: x}]
                      ports: [{name: web, containerPort: 8080}]
                      workingDir: /tmp
                      resources:
                        requests: {cpu: "2", memory: 4Gi, nvidia.com/gpu: "1"}
                        limits: {memory: 4Gi, nvidia.com/gpu: "1", cpu: "4"}
          policies:
            - {event: PodFailed, action: RestartJob, timeout: 1m}
            - {events: [PodEvicted, Unknown], action: AbortJob}
          plugins:
            pytorch: [--master=master, --worker=worker]
          volumes:
            - {mountPath: /data, volumeClaimName: shared}
            - mountPath: /scratch
              volumeClaim:
                accessModes: [ReadWriteOnce]
                storageClassName: fast
                resources: {requests: {storage: 1Gi}}
        """
    )


def task(**options: Any) -> Callable[[], object]:
    arguments = {"image": "i"} | options
    return lambda: Job("j").task("t", **arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Job("Train"), "metadata.name: a lowercase RFC 1123 subdomain"),
        (lambda: Job("j", queue="a_b"), "spec.queue:"),
        (lambda: Job("j", namespace="a.b"), "metadata.namespace:"),
        (lambda: Job("j", labels={"-": "x"}), r"metadata.labels\[-\]"),
        (lambda: Job("j", min_available=-1), "spec.minAvailable: Invalid value: -1"),
        (lambda: Job("j", max_retry=True), "spec.maxRetry: Invalid value: true"),
        (lambda: Job("j").manifest(), "spec.tasks: Required value"),
        (lambda: Job("j", min_available=2).task("t", image="i").manifest(), "minAvailable.* 1$"),
        (lambda: Job("j").task("t", image="i").task("t", image="i"), "tasks.1..name: Duplicate"),
        (lambda: Job("j").task("t.u", image="i"), r"spec.tasks\[0\].name"),
        (task(image=""), r"containers\[0\].image: Required value"),
        (task(command="sleep 5"), "command: Invalid value: .*list of texts"),
        (task(args=[5]), "args: Invalid value"),
        (task(cpu="many"), r'resources\[cpu\]: "many" is not a quantity: write a number'),
        (task(memory="-1Gi"), r"resources\[memory\]: must not be negative"),
        (task(gpus=0.5), "gpu.: Invalid value: 0.5"),
        (task(replicas=-1), "replicas: Invalid value: -1"),
        (task(min_available=2), "minAvailable: Invalid value: 2: must not exceed replicas"),
        (task(env={"": "x"}), r"env\[\]"),
        (task(ports={"web": 70000}), r"ports\[web\]: Invalid value: 70000"),
        (task(restart_policy="Sometimes"), "restartPolicy: Unsupported value"),
        (lambda: Job("j").task("t", image="i", depends_on=["x"]).manifest(), "dependsOn.name: Uns"),
        (lambda: Job("j").policy("PodDied"), "policy.event: Unsupported value"),
        (lambda: Job("j").policy("PodFailed", "Explode"), "policy.action: Unsupported value"),
        (lambda: Job("j").policy(), "either an event or an exit code"),
        (lambda: Job("j").policy("*", exit_code=1), "either an event or an exit code"),
        (lambda: Job("j").policy(exit_code=0), "policy.exitCode"),
        (lambda: Job("j").policy("*", timeout="soon"), "policy.timeout"),
        (lambda: Job("j").policy("*", task="t"), "policy.task: Not found"),
        (lambda: Job("j").plugin(""), "spec.plugins: Required value"),
        (lambda: Job("j").plugin("svc", 5), r"spec.plugins\[svc\]"),  # type: ignore[arg-type]
        (lambda: Job("j").volume("data", claim="c"), "mountPath"),
        (lambda: Job("j").volume("/data"), "either an existing claim or the size"),
        (lambda: Job("j").volume("/data", size="x"), 'storage: "x" is not a quantity'),
    ],
)
def test_mistakes_are_reported_with_their_field(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        build()


def test_each_call_returns_a_new_job() -> None:
    base = Job("sweep").task("t", image="i")
    first = base.policy("PodFailed", "AbortJob", task="t")
    assert "policies" not in base.manifest()["spec"]["tasks"][0]
    manifest = first.manifest()
    manifest["spec"]["tasks"].clear()
    assert first.manifest()["spec"]["tasks"][0]["policies"]


def test_notebooks_show_escaped_text() -> None:
    shown = Job("j").task("t", image="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_malformed_amount_of_memory_is_explained_once() -> None:
    with pytest.raises(ValueError, match="4GB") as caught:
        task(memory="4GB")()
    text = str(caught.value)
    assert text.count('"4GB" is not a quantity: write 4Gi (powers of 1024) or 4G') == 1
    assert "regular expression" not in text
