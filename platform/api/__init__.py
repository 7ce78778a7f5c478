"""The REST command API (FastAPI)."""
