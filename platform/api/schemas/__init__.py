"""Request and response bodies of the REST API, as in its OpenAPI document."""
