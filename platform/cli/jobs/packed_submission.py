"""Submit a job whose pods unpack the working directory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ...client import Client, ClientError, JobHandle
from ...model.names import SUBMISSION, SUBMISSION_INCOMPLETE
from ..submit.manifest import Claim
from .shared import CommandFailedError, key

if TYPE_CHECKING:
    from .kubernetes import KubernetesClient


def submit_packed(
    client: Client, manifest: Mapping[str, Any], archive: bytes, claim: Claim | None
) -> JobHandle:
    """Create a job, and then store its working directory: in ConfigMaps, which it owns, or a claim.

    Until that is stored the job is suspended: if this process is killed in between, no pods wait
    for what nothing creates.

    Raises:
        CommandFailedError: they cannot be created; the job is deleted again.
    """
    job = client.jobs.submit(_suspended(manifest))
    hold = bool(manifest["spec"].get("suspend"))
    try:
        if claim is None:
            job.complete_submission(archive, hold=hold)
        else:
            # Only with the Kubernetes API alone does a workspace have a claim.
            transport = cast("KubernetesClient", client).transport
            transport.store_in_claim(job, archive, claim, _image(manifest))
            job.complete_submission(hold=hold)
    except KeyboardInterrupt:
        job.delete()
        raise
    except (ClientError, CommandFailedError) as error:
        text = f"the working directory cannot be stored: {error}; use --no-workdir"
        try:
            job.delete()
        except ClientError as failure:
            raise CommandFailedError(f"{text}; delete {key(job)}: {failure}") from None
        raise CommandFailedError(f"{text}; {key(job)} is deleted again") from None
    return job


def _suspended(manifest: Mapping[str, Any]) -> dict[str, Any]:
    metadata = manifest["metadata"]
    labels = {**metadata.get("labels", {}), SUBMISSION: SUBMISSION_INCOMPLETE}
    spec = {**manifest["spec"], "suspend": True}
    return {**manifest, "metadata": {**metadata, "labels": labels}, "spec": spec}


def _image(manifest: Mapping[str, Any]) -> str:
    """Return the image that unpacks the working directory."""
    pod = manifest["spec"]["tasks"][0]["template"]["spec"]
    image: str = pod["initContainers"][0]["image"]
    return image
