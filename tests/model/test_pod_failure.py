"""Why a pod failed, as a text."""

import msgspec
import pytest

from batholith.job_ctrl.tracker.core_types import Terminated
from batholith.model.pod_failure import pod_failure


def ended(code: int, reason: str = "", message: str = "") -> Terminated:
    return Terminated(exit_code=code, reason=reason, message=message)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ended(3, "Error"), "exit code 3"),
        (ended(3, "Error", "the last lines that the program wrote"), "exit code 3"),
        (ended(137, "OOMKilled"), "OOMKilled (exit code 137)"),
        (ended(137, "OOMKilled", "what the program wrote"), "OOMKilled (exit code 137)"),
        (
            ended(128, "StartError", 'exec: "pyhton3": No such file or directory'),
            'StartError: exec: "pyhton3": No such file or directory',
        ),
        (ended(137, "ContainerStatusUnknown"), "ContainerStatusUnknown (exit code 137)"),
        (ended(0, "Completed"), ""),
        (None, ""),
    ],
)
def test_the_container_says_why(state: Terminated | None, expected: str) -> None:
    assert pod_failure("", "", [("main", state)]) == expected


def test_of_several_containers_the_first_that_failed_is_named() -> None:
    several = [("init", ended(0)), ("a", ended(1, "Error")), ("b", ended(2, "Error"))]
    assert pod_failure("", "", several) == "container a: exit code 1"


def test_what_ended_the_pod_counts_more_than_how_its_containers_ended() -> None:
    stopped = [("main", ended(143, "Error"))]
    assert pod_failure("DeadlineExceeded", "Pod was active on the node longer", stopped) == (
        "DeadlineExceeded: it ran longer than its activeDeadlineSeconds"
    )
    message = "The node was low on resource: memory."
    assert pod_failure("Evicted", message, stopped) == f"Evicted: {message}"
    assert pod_failure("Preempting", "", stopped) == "Preempting"


def test_long_messages_of_several_lines_become_one_short_line() -> None:
    text = pod_failure("", "", [("main", ended(128, "StartError", "a\n\tb  c\n" + "x" * 5000))])
    assert text.startswith("StartError: a b c xxx")
    assert text.endswith("…")
    assert len(text) < 350


def test_texts_of_kubelets_without_these_fields_are_none() -> None:
    assert pod_failure("", "", [("main", msgspec.json.decode(b"{}", type=Terminated))]) == ""
    assert pod_failure("", "", []) == ""
