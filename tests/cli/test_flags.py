"""Arguments written for Volcano are accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from batholith.admission.serving.service import AdmissionOptions
from batholith.cli import admission, controllers, scheduler
from batholith.cli.controller_flags import BatchFlags, ControllerFlags, TrainingFlags, validate
from batholith.cli.controller_selection import (
    DEFAULT,
    SelectionError,
    select,
    unsupported,
)
from batholith.cli.embedded import EmbeddedCluster, Options
from batholith.cli.featuregate import QUEUE_GATES, FeatureGateError, ineffective_gates, is_enabled
from batholith.cli.flag_groups import KLOG_FLAGS, ClusterFlags, EndpointFlags, LogFlags
from batholith.cli.go_flags import GoFlagCommand, IgnoredFlag, command_from_groups
from batholith.cli.leader_election import ElectionFlags, SchedulerElectionFlags
from batholith.cli.main import app
from batholith.cli.scheduler import SchedulingFlags
from batholith.local.supervisor.datadir import DataDir

COMPONENTS = (
    "controllers", "scheduler", "admission", "apiserver", "agent", "api", "workloads", "proxy",
)  # fmt: skip
CHART_CONTROLLERS = (
    "--logtostderr",
    "--enable-healthz=true",
    "--enable-metrics=true",
    "--leader-elect=false",
    "--worker-threads=3",
    "--worker-threads-for-gc=5",
    "--worker-threads-for-podgroup=5",
    "--kube-api-qps=50",
    "--kube-api-burst=100",
    "--sharding-configmap=volcano-sharding-configmap",
    "--sharding-configmap-namespace=volcano-system",
    "--controllers=*,-sharding-controller,-hyperNode-controller",
    "-v=4",
    "2>&1",
)
CHART_SCHEDULER = (
    "--logtostderr",
    "--scheduler-conf=/volcano.scheduler/volcano-scheduler.conf",
    "--scheduler-name=volcano",
    "--enable-healthz=true",
    "--enable-metrics=true",
    "--enable-pprof=false",
    "--leader-elect=true",
    "--leader-elect-resource-namespace=volcano-system",
    "--kube-api-qps=2000",
    "--kube-api-burst=2000",
    "--schedule-period=1s",
    "--node-worker-threads=20",
    "--percentage-nodes-to-find=0",
    "--ignored-provisioners=example.com/one",
    "--scheduler-sharding-mode=none",
    "-v=3",
    "2>&1",
)
CHART_ADMISSION = (
    "--enabled-admission=/jobs/mutate,/jobs/validate,/podgroups/validate,/queues/mutate,"
    "/queues/validate,/hypernodes/validate,/cronjobs/validate",
    "--tls-cert-file=/admission.local.config/certificates/tls.crt",
    "--tls-private-key-file=/admission.local.config/certificates/tls.key",
    "--ca-cert-file=/admission.local.config/certificates/ca.crt",
    "--admission-conf=/admission.local.config/configmap/volcano-admission.conf",
    "--webhook-namespace=volcano-system",
    "--webhook-service-name=volcano-admission-service",
    "--enable-healthz=true",
    "--enable-queue-allocated-pods-check=false",
    "--kube-api-qps=50",
    "--logtostderr",
    "--port=8443",
    "-v=4",
    "2>&1",
)
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@dataclass
class ParsedCommand:
    """Records the arguments of a command."""

    groups: list[Any] = field(default_factory=list)

    def parse(self, command: Any, arguments: Sequence[str]) -> None:
        """Let *command* read *arguments* as the process would."""
        one = typer.Typer(pretty_exceptions_enable=False)
        one.command(cls=GoFlagCommand)(command)
        outcome = CliRunner().invoke(one, list(arguments))
        assert outcome.exit_code == 0, outcome.output

    def controllers(self, *arguments: str) -> tuple[ClusterFlags, ControllerFlags, EndpointFlags]:
        def run(
            cluster: ClusterFlags,
            work: ControllerFlags,
            election: ElectionFlags,
            serving: EndpointFlags,
            logging_: LogFlags,
        ) -> None:
            self.groups = [cluster, work, serving]

        self.parse(command_from_groups(run, *controllers.IGNORED_FLAGS), arguments)
        cluster, work, serving = self.groups
        return cluster, work, serving

    def scheduler(self, *arguments: str) -> tuple[ClusterFlags, SchedulingFlags, EndpointFlags]:
        def run(
            cluster: ClusterFlags,
            scheduling: SchedulingFlags,
            election: SchedulerElectionFlags,
            serving: EndpointFlags,
            logging_: LogFlags,
        ) -> None:
            self.groups = [cluster, scheduling, serving]

        self.parse(command_from_groups(run, *scheduler.IGNORED_FLAGS), arguments)
        cluster, scheduling, serving = self.groups
        return cluster, scheduling, serving


def test_the_arguments_of_volcanos_chart_for_its_controllers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, work, serving = ParsedCommand().controllers(*CHART_CONTROLLERS)
    assert (cluster.kube_api_qps, cluster.kube_api_burst) == (50, 100)
    assert (work.worker_threads, work.worker_threads_for_podgroup) == (3, 5)
    assert work.worker_threads_for_cronjob == 64
    assert set(select(work.selection)) == set(ON_BY_DEFAULT[:-1])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert (serving.health(), serving.metrics(8081)) == (":11251", ":8081")


def test_the_arguments_of_volcanos_chart_for_its_scheduler() -> None:
    _, scheduling, serving = ParsedCommand().scheduler(*CHART_SCHEDULER)
    assert scheduling.scheduler_conf == Path("/volcano.scheduler/volcano-scheduler.conf")
    assert list(scheduling.scheduler_name) == ["volcano"]
    assert scheduling.scheduler_sharding_mode == "none"
    assert serving.enable_healthz is serving.enable_metrics is True


def test_the_arguments_of_volcanos_chart_for_its_admission() -> None:
    found: list[AdmissionOptions] = []

    def run(
        cluster: ClusterFlags,
        web: admission.WebhookFlags,
        rules: admission.AdmissionFlags,
        election: admission.AdmissionElectionFlags,
        served: admission.HealthFlags,
        logging_: LogFlags,
    ) -> None:
        found.append(admission.build_options(web, rules))

    ParsedCommand().parse(command_from_groups(run, *KLOG_FLAGS), CHART_ADMISSION)
    [options] = found
    assert options.paths == (
        "/jobs/mutate",
        "/jobs/validate",
        "/podgroups/validate",
        "/queues/mutate",
        "/queues/validate",
        "/hypernodes/validate",
        "/cronjobs/validate",
    )
    assert options.endpoint.service == "volcano-admission-service"
    assert options.listen.port == 8443


def test_scheduler_name_is_repeatable() -> None:
    _, work, _ = ParsedCommand().controllers("--scheduler-name", "a", "--scheduler-name=b,c")
    assert list(work.scheduler_name) == ["a", "b,c"]


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ("--inherit-owner-annotations", True),
        ("--inherit-owner-annotations=T", True),
        ("--inherit_owner_annotations=1", True),
        ("--inherit-owner-annotations=false", False),
        ("--inherit-owner-annotations=0", False),
        ("--no-inherit-owner-annotations", False),
    ],
)
def test_boolean_values_in_gos_syntax(argument: str, wanted: bool) -> None:
    _, work, _ = ParsedCommand().controllers(argument)
    assert work.inherit_owner_annotations is wanted


@pytest.mark.parametrize("value", [True, False])
def test_placement_at_creation_is_switched_in_both_components(value: bool) -> None:
    argument = f"--place-at-creation={str(value).lower()}"
    _, controllers, _ = ParsedCommand().controllers(argument)
    assert controllers.place_at_creation is value
    assert ParsedCommand().controllers()[1].place_at_creation is True
    outcome = CliRunner().invoke(app, ["scheduler", argument, "--stranded-gang-timeout=0s"])
    assert "--stranded-gang-timeout" in outcome.output  # the first flag is accepted


def test_podgroups_are_an_option_of_the_controllers_alone() -> None:
    assert ParsedCommand().controllers()[1].podgroups == "all"
    assert ParsedCommand().controllers("--podgroups=gangs")[1].podgroups == "gangs"
    assert CliRunner().invoke(app, ["controllers", "--podgroups=none"]).exit_code == 2
    assert CliRunner().invoke(app, ["scheduler", "--podgroups=gangs"]).exit_code == 2


def test_invalid_boolean_values_are_rejected() -> None:
    outcome = CliRunner().invoke(app, ["controllers", "--enable-healthz=perhaps"])
    assert outcome.exit_code == 2
    assert "neither true nor false" in outcome.output


def test_unknown_flags_are_rejected() -> None:
    assert CliRunner().invoke(app, ["controllers", "--no-such-flag=1"]).exit_code == 2


@pytest.mark.parametrize("command", ["controllers", "scheduler"])
def test_help_marks_flags_without_effect(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "250"})
    module = {"controllers": controllers, "scheduler": scheduler}[command]
    ignored_flags: tuple[IgnoredFlag, ...] = module.IGNORED_FLAGS
    for flag in ignored_flags:
        line = next(line for line in result.output.splitlines() if f"--{flag.name} " in line)
        assert "No effect: " in line


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in COMPONENTS)],
)
def test_the_version(command: list[str]) -> None:
    outcome = CliRunner().invoke(app, [*command, "--version"])
    assert (outcome.exit_code, outcome.output.split()[0]) == (0, "batholith")


MISTAKES = {
    "--log-level=loud": "'loud' is none of DEBUG, INFO",
    "--log-format=xml": "'xml' is neither text nor json",
    "--http-limits=x=1": "--http-limits: 'x=1': want one of connections, handshake-timeout,",
    "--kubeconfig=/nowhere": "cannot read kubeconfig /nowhere: No such file",
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", COMPONENTS)
def test_invalid_flags_are_reported_without_a_traceback(
    command: str, mistake: str, tmp_path: Path
) -> None:
    if command == "apiserver" and "kubeconfig" in mistake:
        mistake, expected = "--listen-address=here", "'here' is not [HOST]:PORT"
    else:
        expected = MISTAKES[mistake]
    needed = {
        "admission": ["--webhook-url=https://here"],
        "agent": [f"--data-dir={tmp_path}"],
        "apiserver": [f"--data-dir={tmp_path}"],
        "api": ["--listen-address=127.0.0.1:0"],
    }
    outcome = CliRunner().invoke(app, [command, *needed.get(command, []), mistake])
    assert isinstance(outcome.exception, SystemExit)
    assert outcome.exit_code > 0
    assert expected in " ".join(outcome.output.replace("│", " ").split())


def test_an_invalid_master_url_and_missing_files_are_named() -> None:
    outcome = CliRunner().invoke(app, ["controllers", "--master=here:6443"])
    assert outcome.output.strip() == "batholith: --master=here:6443: not an http or https URL"
    files = [f"--{name}-file=/no/{name}" for name in ("tls-cert", "tls-private-key", "ca-cert")]
    outcome = CliRunner().invoke(app, ["controllers", "--enable-healthz", *files])
    assert "certificate /no/tls-cert, key /no/tls-private-key: " in outcome.output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("soon", '--reconcile-timeout: time: invalid duration "soon"'),
        ("0s", "--reconcile-timeout=0s: must be more than 0"),
        ("-1m", "--reconcile-timeout=-1m: must be more than 0"),
    ],
)
def test_a_reconcile_timeout_must_be_positive(given: str, expected: str) -> None:
    outcome = CliRunner().invoke(app, ["controllers", f"--reconcile-timeout={given}"])
    assert (outcome.exit_code, outcome.output.strip()) == (1, f"batholith: {expected}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("soon", '--stranded-gang-timeout: time: invalid duration "soon"'),
        ("0s", "--stranded-gang-timeout=0s: must be more than 0"),
    ],
)
def test_the_timeout_of_stranded_gangs_must_be_positive(given: str, expected: str) -> None:
    outcome = CliRunner().invoke(app, ["scheduler", f"--stranded-gang-timeout={given}"])
    assert (outcome.exit_code, outcome.output.strip()) == (1, f"batholith: {expected}")


@pytest.mark.parametrize("command", ["controllers", "scheduler"])
@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (("tls-cert",), "--ca-cert-file and --tls-private-key-file"),
        (("tls-private-key",), "--ca-cert-file and --tls-cert-file"),
        (("tls-cert", "tls-private-key"), "--ca-cert-file"),
        (("ca-cert", "tls-cert"), "--tls-private-key-file"),
    ],
)
def test_incomplete_tls_flags_do_not_fall_back_to_plain_http(
    command: str, given: tuple[str, ...], missing: str
) -> None:
    files = [f"--{name}-file=/no/{name}" for name in given]
    outcome = CliRunner().invoke(app, [command, "--enable-healthz", *files])
    assert outcome.exit_code > 0
    assert f"--{given[0]}-file" in outcome.output
    assert f" without {missing}:" in outcome.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "No such file"), ("a: [", "no YAML"), ("actions: enqueu", "unknown action 'enqueu'")],
)
def test_an_invalid_configuration_is_reported_first(
    text: str | None, expected: str, tmp_path: Path
) -> None:
    conf = tmp_path / "conf"
    if text is not None:
        conf.write_text(text)
    outcome = CliRunner().invoke(app, ["scheduler", f"--scheduler-conf={conf}"])
    assert outcome.exit_code == 1
    (line,) = outcome.output.splitlines()
    assert expected in line


def serving(*arguments: str) -> EndpointFlags:
    return ParsedCommand().controllers(*arguments)[2]


def test_endpoints_are_disabled_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ({}, POD):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert (serving().health(), serving().metrics(8081)) == ("", "")


def test_endpoints_listen_on_loopback_outside_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    asked = serving("--enable-healthz", "--enable-metrics")
    assert (asked.health(), asked.metrics(8080)) == ("127.0.0.1:11251", "127.0.0.1:8080")


def test_setting_an_address_enables_the_endpoint() -> None:
    asked = serving("--healthz-address=:1", "--listen-address", "[::1]:2")
    assert (asked.health(), asked.metrics(8081)) == (":1", "[::1]:2")
    assert serving("--healthz-address=:1", "--enable-healthz=false").health() == ""


@pytest.mark.parametrize("address", ["8081", "host:", "a:b", "127.0.0.1:70000"])
def test_invalid_addresses_are_reported_in_one_line(address: str) -> None:
    outcome = CliRunner().invoke(app, ["controllers", f"--listen-address={address}"])
    assert outcome.exit_code == 1
    assert outcome.output.strip() == f"batholith: {address!r} is not [HOST]:PORT"


ON_BY_DEFAULT = (
    "job-controller", "jobflow-controller", "jobtemplate-controller", "queue-controller",
    "pg-controller", "cronjob-controller", "hyperNode-controller",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (DEFAULT, ON_BY_DEFAULT),
        ("", ON_BY_DEFAULT),
        ("*", ON_BY_DEFAULT),
        ("*,+batch-job-controller", [*ON_BY_DEFAULT, "batch-job-controller"]),
        ("training-controller,*", [*ON_BY_DEFAULT, "training-controller"]),
        ("batch-cronjob-controller", ["batch-cronjob-controller"]),
        ("job-controller", ["job-controller"]),
        ("cronjob-controller", ["cronjob-controller"]),
        ("+job-controller,queue-controller", ["job-controller", "queue-controller"]),
        ("*,-cronjob-controller,-hyperNode-controller", ON_BY_DEFAULT[:-2]),
        ("-cronjob-controller,*,-hyperNode-controller", ON_BY_DEFAULT[:-2]),
        ("*,-hyperNode-controller,-sharding-controller", ON_BY_DEFAULT[:-1]),
        ("job-controller,sharding-controller", ["job-controller"]),
        ("jobflow-controller", ["jobflow-controller"]),
    ],
)
def test_controllers_are_selected(text: str, wanted: Sequence[str]) -> None:
    assert list(select(text)) == list(wanted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jobs-controller", "known: job-controller, jobflow-controller, jobtemplate-controller"),
        ("*,-hypernode-controller", "unknown controller 'hypernode-controller'"),
        ("job-controller,-job-controller", "more than once"),
        ("-pg-controller", "enables no controller"),
        ("sharding-controller", "enables no controller"),
    ],
)
def test_invalid_controller_lists_are_rejected(text: str, expected: str) -> None:
    with pytest.raises(SelectionError, match=expected):
        select(text)
    outcome = CliRunner().invoke(app, ["controllers", f"--controllers={text}"])
    assert outcome.exit_code == 1
    assert expected in outcome.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--manage-all-jobs"], "--manage-all-jobs has no effect without"),
        (["--concurrent-cron-job-syncs=9"], "*,batch-cronjob-controller"),
        (["--enable-scheme=tfjob"], "--enable-scheme has no effect without"),
        (["--gang-scheduler-name=volcano"], "*,training-controller"),
        (["--controllers=training-controller", "--enable-scheme=x"], "unknown kind 'x'"),
    ],
)
def test_flags_of_disabled_controllers_and_unknown_kinds_are_rejected(
    arguments: list[str], expected: str
) -> None:
    outcome = CliRunner().invoke(app, ["controllers", *arguments])
    assert outcome.exit_code == 1
    assert expected in outcome.output


@pytest.mark.parametrize("text", ["- name: [", "name: init", "- {name: a, image: b"])
def test_malformed_templates_of_init_containers_are_rejected(text: str, tmp_path: Path) -> None:
    template = tmp_path / "init.yaml"
    template.write_text(text)
    flag = f"--pytorch-init-container-template-file={template}"
    outcome = CliRunner().invoke(app, ["controllers", "--controllers=training-controller", flag])
    assert outcome.exit_code == 1
    assert outcome.output.startswith(f"batholith: {flag}: ")


def test_unsupported_controllers_are_listed() -> None:
    text = "*,+colocation-config-controller,-sharding-controller,gc-controller"
    assert list(unsupported(text)) == ["colocation-config-controller"]


def test_feature_gates() -> None:
    assert ineffective_gates("") == []
    assert ineffective_gates("WorkLoadSupport=true, CSIStorage=F") == []
    assert ineffective_gates("WorkLoadSupport=false,DynamicResourceAllocation=true") == [
        "WorkLoadSupport=false",
        "DynamicResourceAllocation=true",
    ]
    assert ineffective_gates(f"{QUEUE_GATES}=true") == [f"{QUEUE_GATES}=true"]
    assert ineffective_gates(f"{QUEUE_GATES}=true", supported=[QUEUE_GATES]) == []
    assert not is_enabled("", QUEUE_GATES)
    assert is_enabled(f"{QUEUE_GATES}=false, {QUEUE_GATES}=T", QUEUE_GATES)
    for wrong in ("WorkLoadSupport", "WorkLoadSupport=yes", "=true"):
        with pytest.raises(FeatureGateError):
            ineffective_gates(wrong)


@pytest.mark.parametrize(
    "argument",
    ["--node-selector=pool:batch", "--scheduler-sharding-mode=hard", "--plugins-dir=/plugins"],
)
def test_unsupported_scheduling_flags_are_rejected(argument: str) -> None:
    outcome = CliRunner().invoke(app, ["scheduler", argument])
    assert outcome.exit_code == 1
    assert argument.partition("=")[0] in outcome.output


@pytest.mark.process
def test_the_limit_of_pods_per_job_is_given_to_admission_and_controllers(tmp_path: Path) -> None:
    assert ParsedCommand().controllers()[1].max_pods_per_job == 100_000
    assert ParsedCommand().controllers("--max-pods-per-job=7")[1].max_pods_per_job == 7
    assert CliRunner().invoke(app, ["controllers", "--max-pods-per-job=0"]).exit_code == 2
    data = DataDir(tmp_path / "data")
    data.lock()
    with EmbeddedCluster(data, Options(port=0, api_port=0, max_pods_per_job=7)) as up:
        components = {each.name: each.arguments for each in up.components()}
    given = {name for name, arguments in components.items() if "--max-pods-per-job=7" in arguments}
    assert given == {"apiserver", "controllers"}


@pytest.mark.process
def test_the_configuration_of_the_scheduler_is_checked_before_a_cluster_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory, file = tmp_path / "data", Path("conf.yaml")
    arguments = ["up", "--data-dir", str(directory), "--scheduler-conf", str(file)]
    outcome = CliRunner().invoke(app, arguments)
    assert (outcome.exit_code, "cannot read" in outcome.output) == (1, True)
    file.write_text("actions: allocate, dance")
    outcome = CliRunner().invoke(app, arguments)
    assert (outcome.exit_code, "dance" in outcome.output) == (1, True)
    assert not directory.exists()
    data = DataDir(directory)
    data.lock()
    with EmbeddedCluster(data, Options(port=0, api_port=0, scheduler_conf=file)) as up:
        components = {each.name: each.arguments for each in up.components()}
    assert components["scheduler"][-1] == f"--scheduler-conf={file}"


@pytest.mark.parametrize(
    ("controllers", "groupers", "warned"),
    [
        ("*,jobset-suspension-controller", "annotation", True),
        ("*,trainjob-suspension-controller", "ray", True),
        ("*,jobset-suspension-controller", "annotation,jobset", False),
        ("*,trainjob-suspension-controller", "*", False),
        ("*,rayjob-suspension-controller", "annotation", False),
    ],
)
def test_the_suspension_of_jobsets_without_their_grouper_is_warned_of(
    controllers: str, groupers: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    flags = replace(ControllerFlags(), controllers=[controllers], groupers=groupers)
    validate(flags, BatchFlags(), TrainingFlags())
    text = "pods of resumed jobs do not start together: their grouper is not enabled"
    assert (text in caplog.messages) == warned
