"""Routes of the REST API: one module and one router per resource."""
