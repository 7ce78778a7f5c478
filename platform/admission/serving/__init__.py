"""Admission webhook server: serves the admission rules to real API servers over HTTPS.

:mod:`.reviews` decodes and encodes AdmissionReviews, :mod:`.handler` calls the rule for a path,
with cluster state from :mod:`.object_reader`, and :mod:`.server` is the HTTPS server. The
serving certificate is read from a Secret (:mod:`.cert_secret`, rotated by :mod:`.cert_rotation`) or
from :mod:`.cert_files`. :mod:`.registration` builds webhook configurations, :mod:`.ca_injector`
injects their ``caBundle``, :mod:`.leader_tasks` runs what one replica does for all, and
:mod:`.service` assembles the service. Only ``batholith admission`` imports this package.
"""
