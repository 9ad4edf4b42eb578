"""The error for bytes that are not a valid batch or record."""


class MalformedBatch(ValueError):
    """Raised if bytes from a client or the disk are not a valid batch or record."""
