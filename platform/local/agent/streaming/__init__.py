"""Protocols of exec, attach and port-forward: SPDY/3.1, WebSockets, and what is sent on them."""
