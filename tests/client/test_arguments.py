"""Misspelt arguments and phases are errors, and signatures show every argument."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.sdk import FLAVOURS, sdk

from batholith.client import AsyncClient, Client, Job
from batholith.client.facade import Facade

URL = "http://127.0.0.1:9"  # discard: no call of this module may get that far
BUILDERS = (Job.__init__, Job.task, Job.policy, Job.volume)


def methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All public methods of the clients and of what they consist of."""
    classes: list[type] = [Client, AsyncClient]
    todo: list[type] = [Facade]
    while todo:
        found: list[type] = todo.pop().__subclasses__()
        classes += found
        todo += found
    for class_ in classes:
        for name, method in vars(class_).items():
            if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                yield f"{class_.__name__}.{name}", method
    for method in BUILDERS:
        yield method.__qualname__, method


METHODS = dict(methods())


def test_misspelt_arguments_of_a_task_raise_with_the_nearest() -> None:
    job = Job("a")
    for given, meant in {"gpu": "gpus", "mem": "memory", "cmd": "command"}.items():
        with pytest.raises(TypeError, match=rf"'{given}'; did you mean '{meant}'\?"):
            job.task("m", image="x", **{given: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_no_method_takes_an_argument_that_its_signature_does_not_show(name: str) -> None:
    signature = inspect.signature(METHODS[name])
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("name", METHODS)
def test_signatures_show_nothing_of_the_implementation(name: str) -> None:
    shown = str(inspect.signature(METHODS[name]))
    assert not re.search(r"Send|OpenStream|Emit|Unpack|ParamSpec|~|effects", shown), shown
    assert METHODS[name].__name__ == name.rpartition(".")[2]


def test_the_signature_of_a_list_has_its_filters_and_result() -> None:
    signature = inspect.signature(METHODS["Jobs.list"])
    assert {"namespace", "phase", "queue", "label_selector", "page_size"} <= set(
        signature.parameters
    )
    assert str(signature).endswith(
        "-> collections.abc.Generator[batholith.client.client.JobHandle, None, None]"
    )
    assert str(inspect.signature(METHODS["JobHandle.why"])) == ("(self) -> batholith.wire.jobs.Why")


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.jobs.list(phaze="Running"), "'phaze'; did you mean 'phase'?"),
        (lambda c: c.jobs.page(queu="q"), "'queu'; did you mean 'queue'?"),
        (lambda c: c.jobs.watch(phse="Running"), "'phse'; did you mean 'phase'?"),
        (lambda c: c.jobs.submit({}, namespase="a"), "'namespase'; did you mean 'namespace'?"),
        (lambda c: c.jobs.wait("a", time_out=3), "'time_out'; did you mean 'timeout'?"),
        (lambda c: c.jobs.logs("a", folow=True), "'folow'; did you mean 'follow'?"),
        (lambda c: c.jobs.bulk("suspend", names="a", dryrun=True), "did you mean 'dry_run'?"),
        (lambda c: c.jobs.delete("a", propagate="orphan"), "did you mean 'propagation'?"),
        (lambda c: c.history.list(nmae="a"), "'nmae'; did you mean 'name'?"),
        (lambda c: c.history.usage(ned=None), "'ned'; did you mean 'end'?"),
        (lambda c: c.queues.list(stat="Open"), "'stat'; did you mean 'state'?"),
        (lambda c: c.with_options(time=5), "'time'; did you mean 'timeout'?"),
    ],
)
async def test_a_misspelt_argument_of_a_call_raises_with_the_nearest(
    flavour: str, call: Callable[[Any], Any], message: str
) -> None:
    async with sdk(flavour, URL, token="t") as client:
        with pytest.raises(TypeError, match=re.escape(message)):
            await client.call(call)


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_stream_with_a_misspelt_argument_raises_before_it_is_read(flavour: str) -> None:
    async with sdk(flavour, URL, token="t") as client:
        for call in (client.client.jobs.list, client.client.jobs.watch, client.client.history.list):
            with pytest.raises(TypeError, match="did you mean 'phase'"):
                call(phaze="Running")
            if call != client.client.history.list:
                with pytest.raises(ValueError, match="did you mean 'Running'"):
                    call(phase="Runing")


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.jobs.wait("a", "Runing", timeout=5),
        lambda c: c.jobs.wait("a", ["Completed", "Runing"]),
        lambda c: c.jobs.list(phase="Runing"),
        lambda c: c.jobs.page(phase=["Runing"]),
        lambda c: c.jobs.watch(phase="Runing"),
        lambda c: c.jobs.bulk("suspend", phase="Runing"),
        lambda c: c.history.list(phase="Runing"),
    ],
)
async def test_an_unknown_phase_raises_with_the_nearest(
    flavour: str, call: Callable[[Any], Any]
) -> None:
    async with sdk(flavour, URL, token="t") as client:
        with pytest.raises(ValueError, match=r"unknown phase 'Runing'; did you mean 'Running'\?"):
            await client.call(call)


@pytest.mark.parametrize("class_", [Client, AsyncClient])
def test_a_misspelt_option_of_a_client_raises_with_the_nearest(class_: Any) -> None:
    with pytest.raises(TypeError, match=r"'tokn'; did you mean 'token'\?"):
        class_(URL, tokn="t")
