"""The admission rules as webhooks over HTTPS, for real API servers.

:mod:`.reviews` reads and writes AdmissionReviews, :mod:`.desk` finds the rule for a path and asks
it (what it may look up is in :mod:`.shelves`), :mod:`.server` is the HTTPS server (kopf's) and
:mod:`.tls` its certificate. That comes from a Secret (:mod:`.secret`, by the steps of
:mod:`.bundles`) or from :mod:`.files`. :mod:`.registration` describes webhooks to API servers,
:mod:`.trust` keeps what they trust, :mod:`.office` is what one replica does for all, and
:mod:`.service` the whole part. Only ``batholith admission`` imports this.
"""
