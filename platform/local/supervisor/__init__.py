"""The embedded cluster on one machine: supervisor, data directory, certificates, tokens."""
