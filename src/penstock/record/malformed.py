"""The only error of this package: bytes that are not a valid batch or record."""


class MalformedBatch(ValueError):
    """A fault of a client or a disk, not of this program. The text says what is wrong."""
