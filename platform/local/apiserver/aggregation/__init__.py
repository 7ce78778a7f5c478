"""API aggregation: groups and versions that other API servers have, behind Services."""
