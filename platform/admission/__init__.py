"""Defaulting and validation of Volcano's kinds and training jobs, as pure functions over JSON.

Each admission path is a :class:`~batholith.model.admission.Webhook` value. The
embedded API server calls them in process; ``batholith admission`` serves them over HTTPS.

Rules exist in three forms:

* The CRDs (``model/crds/*.yaml``) declare types, ranges, patterns, enumerations, required fields
  and constant defaults. They apply on every API server; no rule here repeats them, except for the
  numbers that Volcano's CRDs, which may be installed instead, leave open (``negative_errors``).
* The modules here are the complete rules beyond the schema: defaults that depend on other fields,
  conditions across fields and objects, pod templates. Their messages are the reference.
* ``manifests/components/policies`` repeats in CEL those rules here that CEL can express, with the
  same phrases, for clusters without webhooks. ``tests/realkube/test_policies.py`` runs both on the
  same objects and compares the results.
"""

from .settings import AdmissionSettings
from .webhooks import WEBHOOKS, webhooks

__all__ = ["WEBHOOKS", "AdmissionSettings", "webhooks"]
