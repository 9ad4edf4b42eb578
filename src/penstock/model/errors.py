"""The one error tree. Errors say what is wrong in our words; each protocol maps them in one table.

PenstockError
├── InvalidRequest           the caller's fault, and asking again will not help
│   ├── MissingParameter     a required field is absent
│   ├── InvalidMessage       the body has characters a queue cannot carry
│   ├── InvalidReceipt       not a receipt of this queue
│   ├── ExpiredReceipt       the lease behind a FIFO receipt has ended
│   ├── NotLeased            the record is gone or was never leased
│   ├── OffsetOutOfRange     no such place in the log
│   ├── QuotaExceeded        there may be no more of it, for this tenant or on this node
│   └── ProducerRefused      a producer's sequence or epoch does not fit; carries the code
├── NotFound
│   └── TopicNotFound
├── Conflict
│   ├── TopicExists          same name, other settings
│   ├── TopicDeletedRecently
│   ├── PurgeInProgress
│   └── VersionConflict      a store entry changed between read and write
├── AccessDenied             who asks is known, and may not
├── Overloaded               asking later may help
│   ├── Throttled
│   ├── InFlightLimit        too many leased records
│   ├── DiskFull             appends of messages refused; leases and acks go on
│   ├── Draining             this node is about to stop
│   ├── NotLeader            another node leads the partition, or nobody at the moment
│   ├── LeaderMoved          the same, and nobody knows whether it was done before that
│   └── NotEnoughReplicas    too few nodes hold the partition to promise what its topic asks
├── Damaged                  the log on disk is not what was written
└── SetupError               a server cannot start: configuration, files, ports
"""


class PenstockError(Exception):
    """Base of all errors that reach a client or an operator."""

    # What clients are told where the text of the error names addresses; empty: the text itself.
    public = ""


def client_text(error: PenstockError) -> str:
    """Return what a client is told of an error: never an address of ours."""
    return error.public or str(error)


# Exit codes of a command that could not start a server; ``cli/failure.py`` has all of them.
FAILED, USAGE, CONFLICT = 1, 2, 6


class SetupError(PenstockError):
    """A server that cannot start before its operator has changed something."""

    WHAT = "the server did not start"

    def __init__(
        self,
        why: str,
        do: str = "",
        *,
        what: str = WHAT,
        code: int = FAILED,
    ) -> None:
        told = (what if what != SetupError.WHAT else "", why, do)
        super().__init__(": ".join(part for part in told if part))
        self.what = what
        self.why = why
        self.do = do
        self.code = code


class InvalidRequest(PenstockError):
    pass


class MissingParameter(InvalidRequest):
    def __init__(self, name: str) -> None:
        super().__init__(f"The request must contain the parameter {name}.")
        self.name = name


class InvalidMessage(InvalidRequest):
    pass


class InvalidReceipt(InvalidRequest):
    pass


class ExpiredReceipt(InvalidRequest):
    pass


class NotLeased(InvalidRequest):
    pass


class OffsetOutOfRange(InvalidRequest):
    """Asked for a record that is gone or not there yet."""

    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside of [{start_offset}, {end_offset}]")
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset


class ProducerRefused(InvalidRequest):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class QuotaExceeded(InvalidRequest):
    pass


class NotFound(PenstockError):
    pass


class TopicNotFound(NotFound):
    def __init__(self, name: str = "") -> None:
        super().__init__("The specified queue does not exist.")
        self.name = name


class Conflict(PenstockError):
    pass


class TopicExists(Conflict):
    pass


class TopicDeletedRecently(Conflict):
    pass


class PurgeInProgress(Conflict):
    pass


class VersionConflict(Conflict):
    pass


class AccessDenied(PenstockError):
    pass


class Overloaded(PenstockError):
    pass


class Throttled(Overloaded):
    def __init__(self, message: str, *, retry_after_ms: int = 1_000, held_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.held_ms = held_ms  # for so long the answer is kept back: it is one of very many


class InFlightLimit(Overloaded):
    pass


class DiskFull(Overloaded):
    pass


class Draining(Overloaded):
    pass


class NotLeader(Overloaded):
    """Nothing has been done: whoever knows the leader may ask it at once. An answer that a change
    of leaders has made unknown is an Overloaded, not this."""

    def __init__(self, place: str, *, leader: int = -1, epoch: int = -1) -> None:
        super().__init__(
            f"{place} is led by node {leader}."
            if leader >= 0
            else f"{place} is not led by this node."
        )
        self.place = place  # topic id and partition
        self.leader = leader
        self.epoch = epoch


class LeaderMoved(Overloaded):
    """Another node leads since, and whether this was done is not known."""


class NotEnoughReplicas(Overloaded):
    pass


class Damaged(PenstockError):
    """Names the file and the byte where it was found: never silence, never a wrong byte."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
