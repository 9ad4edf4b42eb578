"""Errors of encoding and decoding.

ValueError
├── Malformed            bytes that are not a valid message: the peer's fault
│   └── TooManyEntries   an array of a request has more elements than its bound
├── UnsupportedVersion   a message in a version that we have no layout for, or a value that the
│                        requested version cannot carry
└── Unencodable          a value of ours that does not fit its fields: our own fault"""


class Malformed(ValueError):
    """The only error that a decoder raises for invalid bytes."""


class TooManyEntries(Malformed):
    def __init__(self, name: str, count: int, bound: int) -> None:
        super().__init__(f"{name} has {count} elements; {bound} are allowed in one request")
        self.name = name
        self.count = count
        self.bound = bound


class UnsupportedVersion(ValueError):
    def __init__(self, what: str, version: int, reason: str = "") -> None:
        super().__init__(f"{what} version {version} {reason or 'is not supported'}")
        self.what = what
        self.version = version


class Unencodable(ValueError):
    """Null in a field that may not be null, a number too large, text that is not UTF-8."""
