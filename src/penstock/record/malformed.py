"""The error for bytes that are not a valid batch or record."""


class MalformedBatch(ValueError):
    """The bytes of a client or a disk are not a valid batch or record."""
