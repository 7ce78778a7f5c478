"""Typed API client: credentials, retries, flow control, codec, watch decoding, leases, events."""
