"""Validation of JobFlows.

An update that leaves the spec unchanged is valid, so that a flow stored without validation does not
block updates of labels or finalizers. Templates need not exist yet.
"""

from ..model.admission import AdmissionRequest, DeniedError, ObjectReader, nested_object
from ..model.flow import JobFlow
from ..model.flow_validation import duplicate_warnings, spec_errors
from .decoding import decode


def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
    """Validate a JobFlow.

    Raises:
        DeniedError: with all errors, in one line.
    """
    obj, old = request.object or {}, request.old_object
    if old is not None and nested_object(obj, "spec") == nested_object(old, "spec"):
        return
    if errors := spec_errors(decode(obj, JobFlow).spec):
        raise DeniedError("; ".join(errors))


def warnings(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    """Return a warning for each name that is listed again."""
    return duplicate_warnings(decode(request.object or {}, JobFlow).spec.flows)
