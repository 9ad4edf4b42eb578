"""Errors of encoding and decoding."""


class Malformed(ValueError):
    """The bytes are not a valid message. Decoders raise no other error."""


class TooManyEntries(Malformed):
    def __init__(self, name: str, count: int, bound: int) -> None:
        super().__init__(f"{name} has {count} elements; {bound} are allowed in one request")
        self.name = name
        self.count = count
        self.bound = bound


class UnsupportedVersion(ValueError):
    """The version is not supported, or a value cannot be sent in that version."""

    def __init__(self, what: str, version: int, reason: str = "") -> None:
        super().__init__(f"{what} version {version} {reason or 'is not supported'}")
        self.what = what
        self.version = version


class Unencodable(ValueError):
    """A value cannot be encoded, because of a bug."""
