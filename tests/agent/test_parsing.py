"""Commands of images, environments, simulation plans and host names."""

import math
import sys

import msgspec
import pytest
from support.agent import container, decode_pod, manifest

from batholith.local.agent.runtime.images import (
    EXIT_IMMEDIATELY,
    RUN_FOREVER,
    ProgramNotFoundError,
    command_line,
    short_name,
)
from batholith.local.agent.simulated.plan import SimulatedRun, plan_pod, plan_run, run_of
from batholith.local.agent.state import hosts
from batholith.local.agent.state.core_types import Pod, Service
from batholith.local.agent.state.environment import (
    ContainerConfigError,
    PodRuntimeInfo,
    ResolvedSources,
    build_environment,
    expand,
    expand_all,
)
from batholith.model.meta import OwnerReference
from batholith.model.service_network import HOST_RANGES


def program_found(program: str) -> str | None:
    return f"/bin/{program}"


def program_missing(program: str) -> str | None:
    return None


@pytest.mark.parametrize(
    ("image", "command", "args", "expected"),
    [
        ("nginx", [], [], RUN_FOREVER),
        ("nginx:1.14.2", [], [], RUN_FOREVER),
        ("busybox:latest", [], [], EXIT_IMMEDIATELY),
        ("docker.io/library/busybox@sha256:00", [], [], EXIT_IMMEDIATELY),
        ("example.com/team/model:v1", [], [], RUN_FOREVER),
        ("example.com/team/model:v1", [], ["--steps", "3"], RUN_FOREVER),
        ("busybox", [], ["sleep", "3"], ("sleep", "3")),
        ("nginx", ["sh", "-c", "exit 3"], [], ("sh", "-c", "exit 3")),
        ("model", ["run"], ["--fast"], ("run", "--fast")),
    ],
)
def test_command_line_depends_on_the_image(
    image: str, command: list[str], args: list[str], expected: tuple[str, ...]
) -> None:
    assert command_line(image, command, args, find=program_found) == expected


@pytest.mark.parametrize(
    ("image", "args", "expected"),
    [
        ("example.com/dask:1", ["dask", "worker"], ("dask", "worker")),
        ("nginx", ["dask", "worker"], ("dask", "worker")),
        ("example.com/dask:1", ["--host", "::"], RUN_FOREVER),
        ("example.com/dask:1", ["worker", "dask"], RUN_FOREVER),
        ("example.com/dask:1", ["python", "-V"], (sys.executable, "-V")),
    ],
)
def test_arguments_that_begin_with_an_installed_program_are_the_command(
    image: str, args: list[str], expected: tuple[str, ...]
) -> None:
    def find(program: str) -> str | None:
        return "/bin/dask" if program == "dask" else None

    argv = command_line(image, [], args, find=find, is_installed=lambda one: bool(find(one)))
    assert argv == expected


def test_missing_servers_are_replaced_by_placeholders() -> None:
    assert (
        command_line("nginx", ["nginx", "-g", "daemon off;"], [], find=program_missing)
        == RUN_FOREVER
    )
    assert command_line("python:3", ["python", "-V"], [], find=program_missing) == (
        sys.executable,
        "-V",
    )
    with pytest.raises(ProgramNotFoundError, match="mpiexec"):
        command_line("mpi", ["mpiexec"], [], find=program_missing)


def test_the_short_name_of_an_image_has_neither_registry_nor_tag() -> None:
    assert short_name("localhost:5000/a/b:c") == "b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$$(A)", "$(A)"),
        ("$(C) $A $", "$(C) $A $"),
        ("$$$(A)", "$1"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def env_of(pod: Pod, sources: ResolvedSources) -> dict[str, str]:
    facts = PodRuntimeInfo(pod_ip="127.64.0.1", host_ip="127.0.0.1", allocatable={"cpu": 16})
    return build_environment(
        pod,
        pod.spec.containers[0],
        sources=sources,
        info=facts,
        base={"PATH": "/bin"},
        read_file=lambda ref: ref.key,
    )


def test_variables_that_double_again_and_again_are_too_large() -> None:
    doubling = [{"name": "V0", "value": "x" * 1000}]
    doubling += [{"name": f"V{n}", "value": f"$(V{n - 1})" * 2} for n in range(1, 60)]
    pod = decode_pod(manifest("p", container("true", env=doubling)))
    with pytest.raises(ContainerConfigError, match="larger than"):
        env_of(pod, ResolvedSources())


def test_variables_with_the_same_large_value_are_too_large() -> None:
    reference = {"configMapKeyRef": {"name": "m", "key": "k"}}
    env = [{"name": f"V{number}", "valueFrom": reference} for number in range(1000)]
    pod = decode_pod(manifest("p", container("true", env=env)))
    sources = ResolvedSources(config_maps={"m": {"k": b"x" * 100_000}})
    with pytest.raises(ContainerConfigError, match="larger than"):
        env_of(pod, sources)


@pytest.mark.parametrize("arguments", [["$(A)"] * 1000, ["$(A)" * 1000]])
def test_arguments_with_the_same_large_value_are_too_large(arguments: list[str]) -> None:
    with pytest.raises(ContainerConfigError, match="larger than"):
        expand_all(arguments, {"A": "x" * 100_000})


def test_environment_combines_all_sources_and_the_last_one_wins() -> None:
    env = [
        {"name": "PLAIN", "value": "v"},
        {"name": "EARLIER", "value": "$(PLAIN)/$(LATER)"},
        {"name": "LATER", "value": "x"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        {"name": "TEXT", "valueFrom": {"secretKeyRef": {"name": "s", "key": "w"}}},
        {"name": "NO", "valueFrom": {"secretKeyRef": {"name": "-", "key": "w", "optional": True}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {
            "name": "MEM",
            "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}},
        },
        {"name": "k", "value": "own"},
    ]
    text = manifest(
        "p",
        container(
            env=env,
            envFrom=[{"configMapRef": {"name": "m"}}, {"prefix": "P_", "secretRef": {"name": "s"}}],
            resources={"requests": {"memory": "1500Ki"}},
        ),
    )
    text["metadata"]["labels"] = {"a/b": "c"}
    sources = ResolvedSources(config_maps={"m": {"k": b"shared"}}, secrets={"s": {"w": b"hush"}})
    assert env_of(decode_pod(text), sources) == {
        "PATH": "/bin", "k": "own", "P_w": "hush", "PLAIN": "v", "EARLIER": "v/$(LATER)",
        "LATER": "x", "NAME": "p", "LABEL": "c", "IP": "127.64.0.1", "KEY": "shared",
        "TEXT": "hush", "CPU": "16", "MEM": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "x", "key": "k"}}, 'configmap "x" not found'),
        (
            {"configMapKeyRef": {"name": "m", "key": "q"}},
            "couldn't find key q in ConfigMap default/m",
        ),
        ({"fieldRef": {"fieldPath": "spec.nope"}}, "unsupported fieldPath"),
    ],
)
def test_missing_required_value_is_a_configuration_error(
    source: dict[str, object], message: str
) -> None:
    pod = decode_pod(manifest("p", container(env=[{"name": "A", "valueFrom": source}])))
    with pytest.raises(ContainerConfigError, match=message):
        env_of(pod, ResolvedSources(config_maps={"m": {}}))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["sleep", "3"], SimulatedRun(3)),
        (["/bin/sleep", "2m"], SimulatedRun(120)),
        (["sleep", "infinity"], SimulatedRun(math.inf)),
        (["sh", "-c", "sleep 1; exit 3"], SimulatedRun(1, 3)),
        (["sh", "-c", 'echo "a; b"; sleep 100; echo "done"'], SimulatedRun(100)),
        (["/bin/sh", "-c", "sleep 2s && xxx"], SimulatedRun(2, 127)),
        (["bash", "-ec", "false || sleep 4"], SimulatedRun(4)),
        (["sh", "-c", "false && sleep 4"], SimulatedRun(0, 1)),
        (
            ["sh", "-c", "mkdir -p /var/run/sshd; /usr/sbin/sshd; mpiexec -np 2 app"],
            SimulatedRun(0),
        ),
        (["sh", "-c", "python prepare.py && python train.py"], SimulatedRun(0)),
        (["python", "train.py"], SimulatedRun(0)),
        (["true"], SimulatedRun(0)),
        (["false"], SimulatedRun(0, 1)),
        (["sh", "-c", "exit 7\nsleep 5"], SimulatedRun(0, 7)),
        (["sh", "-c", "sleep 1\nif nc -z h 1; then\n  exit 1\nfi"], SimulatedRun(1)),
        (["sh", "-c", "ray start --head --block"], SimulatedRun(math.inf)),
        (["sh"], SimulatedRun(0)),
    ],
)
def test_duration_and_exit_code_are_inferred_from_the_command(
    argv: list[str], expected: SimulatedRun
) -> None:
    assert run_of(argv) == expected


def run_with(notes: dict[str, str], *command: str, image: str = "busybox") -> SimulatedRun:
    text = manifest("p", container(*command, image=image))
    text["metadata"]["annotations"] = {
        f"simulate.batholith.io/{key}": value for key, value in notes.items()
    }
    pod = decode_pod(text)
    return plan_run(pod, pod.spec.containers[0], "seed")


def test_annotations_override_commands() -> None:
    assert run_with({"run-for": "1m", "exit-code": "3"}, "sleep", "5") == SimulatedRun(60, 3)
    assert run_with({"run-for": "inf"}, "true") == SimulatedRun(math.inf)
    assert run_with({"exit-code": "other=4,c=137"}, "sleep", "5") == SimulatedRun(5, 137)
    assert run_with({"exit-code": "2"}, image="nginx") == SimulatedRun(0, 2)
    assert run_with({"run-for": "soon"}, "sleep", "5") == SimulatedRun(5)
    assert 1 <= run_with({"run-for": "1s~3s"}, "true").seconds <= 3


def test_pod_plan_has_start_delay_and_term_handling() -> None:
    text = manifest()
    prefix = "simulate.batholith.io/"
    text["metadata"]["annotations"] = {
        prefix + "start-delay": "500ms",
        prefix + "ignore-term": "true",
        prefix + "never-start": "no",
    }
    plan = plan_pod(decode_pod(text), default_delay=9, seed="seed")
    assert (plan.start_delay, plan.ignores_term, plan.never_starts) == (0.5, True, False)


def peer(name: str, ip: str, *, ready: bool = True) -> hosts.Peer:
    text = manifest(name, hostname=name, subdomain="job")
    text["metadata"]["labels"] = {"volcano.sh/job-name": "job"}
    return hosts.Peer(decode_pod(text), ip, ready)


def service(name: str, **spec: object) -> Service:
    text = {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    return msgspec.convert(text, Service)


def names_in(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            ip, *names = line.split()
            found.setdefault(ip, set()).update(names)
    return found


def test_a_hosts_file_names_the_peers_behind_a_headless_service() -> None:
    peers = [peer("job-w-0", "127.64.0.1"), peer("job-w-1", "127.64.0.2", ready=False)]
    selector = {"volcano.sh/job-name": "job"}
    headless = service("job", clusterIP="None", selector=selector)
    other = service("web", clusterIP="10.0.0.7", ports=[{"port": 80}])
    own = hosts.pod_section(peers[0].pod, "127.64.0.1")
    found = names_in(own + hosts.namespace_section(peers, [headless, other]))
    assert found["127.64.0.1"] >= {
        "job-w-0", "job-w-0.job", "job-w-0.job.default.svc.cluster.local", "job",
    }  # fmt: skip
    assert "127.64.0.2" not in found, "a pod that is not ready has no name yet"
    assert "web.default.svc" in found["10.0.0.7"]
    published = msgspec.structs.replace(
        headless, spec=msgspec.structs.replace(headless.spec, publish_not_ready_addresses=True)
    )
    found = names_in(own + hosts.namespace_section(peers, [published]))
    assert "job-w-1.job" in found["127.64.0.2"]


def test_hosts_files_begin_like_those_of_a_kubelet() -> None:
    aliases = [{"ip": "10.0.0.9", "hostnames": ["foo", "bar"]}]
    shown = hosts.pod_section(decode_pod(manifest(hostAliases=aliases)), "127.64.0.1")
    assert shown.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    assert shown.endswith("\n\n# Entries added by HostAliases.\n10.0.0.9\tfoo\tbar\n")
    shown = hosts.pod_section(decode_pod(manifest(hostNetwork=True)), "127.0.0.1")
    assert shown.startswith("# Kubernetes-managed hosts file (host network).\n")


def test_addresses_differ_and_stay_the_same_for_a_uid() -> None:
    taken: set[str] = set()
    for number in range(300):
        taken.add(hosts.allocate_address(f"uid-{number}", taken, HOST_RANGES.pod_ips))
    assert len(taken) == 300
    assert hosts.allocate_address("uid-5", set(), HOST_RANGES.pod_ips) in taken


def test_services_with_a_cluster_ip_have_variables() -> None:
    ports = [{"port": 80, "name": "http"}]
    web = service("my-web", clusterIP="10.0.0.7", ports=ports)
    assert hosts.service_variables([web, service("none", clusterIP="None", ports=ports)]) == {
        "MY_WEB_SERVICE_HOST": "10.0.0.7",
        "MY_WEB_SERVICE_PORT": "80",
        "MY_WEB_SERVICE_PORT_HTTP": "80",
        "MY_WEB_PORT": "tcp://10.0.0.7:80",
        "MY_WEB_PORT_80_TCP": "tcp://10.0.0.7:80",
        "MY_WEB_PORT_80_TCP_PROTO": "tcp",
        "MY_WEB_PORT_80_TCP_PORT": "80",
        "MY_WEB_PORT_80_TCP_ADDR": "10.0.0.7",
    }


def test_other_namespaces_know_services_by_names_with_the_namespace() -> None:
    web = service("web", clusterIP="10.0.0.7", ports=[{"port": 80}])
    selector = {"volcano.sh/job-name": "job"}
    headless = service("job", clusterIP="None", selector=selector)
    found = names_in(hosts.outside_section([peer("job-w-0", "127.64.0.1")], [web, headless]))
    assert found == {
        "10.0.0.7": {"web.default", "web.default.svc", "web.default.svc.cluster.local"},
        "127.64.0.1": {
            "job.default", "job.default.svc", "job.default.svc.cluster.local",
            "job-w-0.job.default", "job-w-0.job.default.svc",
            "job-w-0.job.default.svc.cluster.local",
        },
    }  # fmt: skip
    owner = OwnerReference(api_version="v", kind="Job", name="job", uid="u", controller=True)
    meta = msgspec.structs.replace(headless.metadata, owner_references=(owner,))
    private = msgspec.structs.replace(headless, metadata=meta)
    assert hosts.outside_section([peer("job-w-0", "127.64.0.1")], [private]) == ""


def test_name_of_the_api_server_is_in_the_hosts_file() -> None:
    ports = [{"port": 7443, "name": "https"}]
    found = service("kubernetes", clusterIP="127.0.0.1", ports=ports)
    assert hosts.namespace_section([], [found]).startswith("127.0.0.1\tkubernetes.default.svc")
