"""Errors of encoding and decoding."""


class Malformed(ValueError):
    """Bytes that are not a valid message: the only error that a decoder raises for them."""


class TooManyEntries(Malformed):
    """An array of a request has more elements than its bound."""

    def __init__(self, name: str, count: int, bound: int) -> None:
        super().__init__(f"{name} has {count} elements; {bound} are allowed in one request")
        self.name = name
        self.count = count
        self.bound = bound


class UnsupportedVersion(ValueError):
    """A version that we have no layout for, or a value that the version cannot carry."""

    def __init__(self, what: str, version: int, reason: str = "") -> None:
        super().__init__(f"{what} version {version} {reason or 'is not supported'}")
        self.what = what
        self.version = version


class Unencodable(ValueError):
    """Our own fault: null in a field that may not be null, a number too large, invalid text."""
