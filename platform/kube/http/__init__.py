"""HTTP/1.1 over asyncio: connection pool, request encoding, response parsing, proxies."""
