"""Defaulting and validation of Volcano's kinds as pure functions over JSON objects.

Each admission path of Volcano is a :class:`~batholith.model.admission.Webhook` value. The
embedded API server calls these in its own process; ``batholith admission`` serves them over HTTPS.
What a schema can say (types, ranges, patterns, required fields) is left to the schema.
"""

from .settings import AdmissionSettings
from .webhooks import WEBHOOKS, webhooks

__all__ = ["WEBHOOKS", "AdmissionSettings", "webhooks"]
