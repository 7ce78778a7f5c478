"""The admission rules as webhooks over HTTPS, for real API servers.

:mod:`.reviews` reads and writes AdmissionReviews, :mod:`.desk` finds the rule for a path and asks
it, :mod:`.server` is the HTTPS server (kopf's), :mod:`.tls` its certificate, :mod:`.bundles` and
:mod:`.keeper` make certificates and change them in time, :mod:`.registration` describes webhooks
to API servers, and :mod:`.service` is the whole part. Only ``batholith admission`` imports this.
"""
