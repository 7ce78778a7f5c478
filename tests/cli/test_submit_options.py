"""Options of ``batholith submit``: quoting, precedence, and what a command becomes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.cli.submit.directives import (
    Setting,
    from_environment,
    from_flags,
    read_script,
    split_arguments,
)
from batholith.cli.submit.errors import SubmitError
from batholith.cli.submit.manifest import MAX_SCRIPT, Program, Workspace, build_manifest
from batholith.cli.submit.option_table import OPTIONS, SAME_SETTING, SUPPORTED
from batholith.cli.submit.options import SubmitOptions, parse_options
from batholith.cli.submit.values import time_limit
from batholith.model.workdirs import CHUNK
from batholith.wire.renewal import renewed

READ_ONLY = Workspace(submit_dir="/home/me", workdir="/home/me", image="local")
ELSEWHERE = Workspace(submit_dir="/home/me")


def options(script: str = "#!/bin/sh\n", **given_: Any) -> SubmitOptions:
    """Options of a script, of variables (``environment``) and of flags."""
    environment = given_.pop("environment", {})
    flags = {name.replace("_", "-"): value for name, value in given_.items()}
    settings = [
        *read_script(script).settings,
        *from_environment(environment),
        *from_flags(flags),
    ]
    return parse_options(settings, environment)


def command(*arguments: str, workspace: Workspace = READ_ONLY, **flags: Any) -> dict[str, Any]:
    """The manifest of a command."""
    program = Program(arguments=arguments, name=arguments[0] if arguments else "")
    return build_manifest(options(**flags), program, workspace, number=100000000)


def problems(*arguments: str, workspace: Workspace = READ_ONLY, **flags: Any) -> list[str]:
    """Why a command is refused."""
    with pytest.raises(SubmitError) as caught:
        command(*arguments, workspace=workspace, **flags)
    return list(caught.value.problems)


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"]
    return dict(container)


@given(st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]))))
def test_quoted_words_are_read_as_they_were(arguments: list[str]) -> None:
    quoted = ['"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in arguments]
    assert split_arguments("  ".join(quoted)) == arguments
    escaped = ["".join(f"\\{character}" for character in each) for each in arguments if each]
    assert split_arguments(" ".join(escaped)) == [each for each in arguments if each]


@given(st.lists(st.sampled_from(["--", "-", "n", "=", "1", " ", '"', "'", "\\", "#", ":", "mem"])))
def test_any_line_is_read_or_refused_with_its_number(pieces: list[str]) -> None:
    try:
        found = read_script(f"#!/bin/sh\n#SBATCH {''.join(pieces)}\n")
    except SubmitError as error:
        assert all(each.startswith("line 2: #SBATCH") for each in error.problems)
    else:
        assert all(each.where.startswith("line 2: #SBATCH") for each in found.settings)


@given(st.integers(0, 9), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_times_are_read_in_all_notations(days: int, hours: int, minutes: int, seconds: int) -> None:
    day, hour = 86400 * days, 3600 * hours
    expected = {
        f"{minutes}": 60 * minutes,
        f"{minutes}:{seconds}": 60 * minutes + seconds,
        f"{hours}:{minutes}:{seconds}": hour + 60 * minutes + seconds,
        f"{days}-{hours}": day + hour,
        f"{days}-{hours}:{minutes}": day + hour + 60 * minutes,
        f"{days}-{hours}:{minutes}:{seconds}": day + hour + 60 * minutes + seconds,
    }
    assert {text: time_limit(text) or 0 for text in expected} == expected


def test_flags_override_variables_and_variables_override_lines() -> None:
    script = "#!/bin/sh\n#SBATCH -p lines --mem=1G -t 1\n"
    environment = {"SBATCH_PARTITION": "variables", "SBATCH_TIMELIMIT": "2"}
    found = options(script, environment=environment, time="3")
    assert (found.queue, found.mem, found.time_limit) == ("variables", 1024, 180)


def test_an_option_overrides_another_one_that_sets_the_same() -> None:
    found = options("#!/bin/sh\n#SBATCH --mem-per-cpu=1G --requeue\n", mem="2G", no_requeue=True)
    assert (found.mem, found.mem_per_cpu, found.requeue) == (2048, None, False)


def test_errors_of_variables_and_flags_name_them() -> None:
    with pytest.raises(SubmitError) as caught:
        options(environment={"SBATCH_ACCOUNT": "x/y", "SBATCH_WHAT": "y"}, ntasks="none")
    assert list(caught.value.problems) == [
        "$SBATCH_ACCOUNT: 'x/y' is no account: up to 63 letters, digits, '-', '_' and '.', with a"
        " letter or a digit at both ends",
        "$SBATCH_WHAT is not supported: unset it",
        "--ntasks: 'none' is no whole number",
    ]


def test_flags_are_not_left_out() -> None:
    found = options("#!/bin/sh\n#SBATCH --time=1\n", time="2", ignore="time")
    assert (found.time_limit, found.ignored) == (120, ())
    with pytest.raises(SubmitError, match="--ignore: 'tiem' is no option of sbatch"):
        options(ignore="tiem")


def test_each_option_has_an_effect_or_is_refused() -> None:
    names = {each.name for each in SUPPORTED}
    assert names == {name for name, option in OPTIONS.items() if option.is_supported}
    for option in OPTIONS.values():
        if not option.is_supported:
            with pytest.raises(SubmitError, match="is not supported"):
                parse_options([Setting(option, "", f"--{option.name}", 0)])
    assert SAME_SETTING.keys() <= OPTIONS.keys()


def test_a_command_runs_without_a_shell_and_keeps_dollar_signs() -> None:
    manifest = command("echo", "$(HOME)", "$$", "a b;c")
    assert container_of(manifest)["command"] == ["echo", "$$(HOME)", "$$$$", "a b;c"]
    assert "volumes" in manifest["spec"]["tasks"][0]["template"]["spec"]
    assert container_of(manifest)["volumeMounts"] == [
        {"name": "workdir", "mountPath": "/home/me", "readOnly": True}
    ]


def test_the_tasks_of_a_command_are_pods_that_start_together() -> None:
    manifest = command("train", ntasks="3", cpus_per_task="2", mem="1G", gpus="3")
    (task,) = manifest["spec"]["tasks"]
    assert task["replicas"] == 3
    assert container_of(manifest)["resources"] == {
        "requests": {"cpu": "2", "memory": "1024Mi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "1024Mi", "nvidia.com/gpu": "1"},
    }
    assert sorted(manifest["spec"]["plugins"]) == ["env", "svc"]
    assert "minAvailable" not in manifest["spec"]


def test_what_has_no_meaning_for_a_command_is_refused() -> None:
    assert problems("x", ntasks="4", nodes="2") == [
        "--nodes: the tasks of a command are pods, which the scheduler distributes: use --ntasks"
        " only"
    ]
    assert problems("x", ntasks_per_node="2")[0].startswith("--ntasks-per-node: the tasks of")
    assert problems("x", every_node=True) == ["--every-node: a command runs in each pod anyway"]
    assert problems("x", gpus="3", ntasks="2") == [
        "--gpus: 3 GPUs cannot be divided among 2 equal pods"
    ]
    assert problems() == ["the command is missing"]


def test_a_file_for_the_output_must_be_writable() -> None:
    (found,) = problems("x", output="out.txt")
    assert found.startswith("--output is not supported, as the job cannot write to the working")
    manifest = command("x", output="/dev/null", error="/dev/stdout")
    assert container_of(manifest)["command"][:2] == ["/bin/sh", "-c"]
    assert container_of(manifest)["command"][4:] == ["/dev/null", "/dev/stdout", "truncate", "x"]


def test_a_cluster_that_has_no_programs_of_this_machine_needs_an_image() -> None:
    assert problems("x", workspace=ELSEWHERE) == [
        "--image is missing: which image has the program?"
    ]
    manifest = command("x", workspace=ELSEWHERE, image="busybox", chdir="/srv")
    assert "volumes" not in manifest["spec"]["tasks"][0]["template"]["spec"]
    assert container_of(manifest)["workingDir"] == "/srv"


def test_a_large_script_is_refused() -> None:
    script = "#!/bin/sh\n" + "#" * MAX_SCRIPT
    program = Program(script=script, name="large.sh")
    with pytest.raises(SubmitError, match="the script has more than 100000 bytes"):
        build_manifest(options(script), program, READ_ONLY, number=1)


HOOK = "https://hooks.example/job"
NOTIFY, EVENTS = "batholith.io/notify", "batholith.io/notify-events"


@pytest.mark.parametrize(
    ("types", "events"),
    [
        (None, None),
        ("BEGIN", "start"),
        ("end,fail", "end,failure"),
        ("TIME_LIMIT_90", "time-limit"),
        ("ALL", "end,failure,start,time-limit"),
    ],
)
def test_mail_types_choose_the_events_that_a_url_is_notified_of(
    types: str | None, events: str | None
) -> None:
    flags: dict[str, Any] = (
        {"notify": HOOK} if types is None else {"notify": HOOK, "mail_type": types}
    )
    annotations = command("true", **flags)["metadata"]["annotations"]
    assert annotations[NOTIFY] == HOOK
    assert annotations.get(EVENTS) == events


def test_without_mails_nothing_is_notified() -> None:
    found = command("true", notify=HOOK, mail_type="NONE")["metadata"]
    assert NOTIFY not in found.get("annotations", {})


def test_a_command_to_notify_is_not_sent_to_the_server() -> None:
    found = options(notify="notify-send 'it ended'", mail_type="END")
    assert found.notify_command == ("notify-send", "it ended")
    metadata = command("true", notify="notify-send 'it ended'")["metadata"]
    assert NOTIFY not in metadata.get("annotations", {})


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"mail_type": "END"}, "--mail-type: there are no mails; --notify is missing"),
        ({"notify": HOOK, "mail_type": "TIME_LIMIT_50"}, "'TIME_LIMIT_50' is not supported"),
        ({"notify": "https://user@host/"}, "must be a URL of http or https"),
        ({"notify": "'open"}, "No closing quotation"),
        ({"notify": " "}, "the value is empty"),
    ],
)
def test_notifications_that_are_wrong_are_refused(flags: dict[str, Any], problem: str) -> None:
    (found,) = problems("true", **flags)
    assert problem in found


PACKED = Workspace(submit_dir="/home/me", workdir="/home/me", archive=b"x" * (CHUNK + 1))


def test_a_packed_working_directory_is_unpacked_by_an_init_container() -> None:
    manifest = command("python", "train.py", workspace=PACKED, image="python")
    name = manifest["metadata"]["name"]
    pod = manifest["spec"]["tasks"][0]["template"]["spec"]
    (unpacking,) = pod["initContainers"]
    assert unpacking["image"] == "python"
    assert unpacking["command"][3:] == ["batholith", "/var/run/batholith-workdir", "/home/me"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["workdir"] == {"name": "workdir", "emptyDir": {}}
    assert [
        each["configMap"]["name"] for each in volumes["workdir-packed"]["projected"]["sources"]
    ] == [
        f"{name}-workdir-0",
        f"{name}-workdir-1",
    ]
    assert container_of(manifest)["workingDir"] == "/home/me"
    with pytest.raises(ValueError, match="is deleted with it"):
        renewed({**manifest, "metadata": {**manifest["metadata"], "namespace": "n"}}, number=1)


def test_files_of_a_copy_would_be_lost() -> None:
    (problem,) = problems("true", workspace=PACKED, image="x", output="out.txt")
    assert "the copy of the working directory is not kept" in problem
