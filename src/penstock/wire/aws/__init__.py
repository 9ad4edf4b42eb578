"""The AWS protocols, without I/O: bytes of requests become typed values, replies become bytes."""
