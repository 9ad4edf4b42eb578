"""The AWS protocols, without I/O: decodes requests into typed values, and encodes replies."""
