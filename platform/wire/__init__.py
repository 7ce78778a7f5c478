"""Responses of the REST API, one frozen struct per schema of its OpenAPI document.

Unknown fields are ignored and missing ones have defaults, so that a client and a server of
different versions understand each other. Times are aware ``datetime`` objects. Phases and states
are text, since a later server may have others; those of this version are in
:class:`~.jobs.Phase`.
"""
