"""The one error of this package: bytes that are not the batch or record they claim to be."""


class MalformedBatch(ValueError):
    """A peer's or a disk's fault, never ours. The text says which field and what is wrong."""
