"""The error tree. Each protocol maps it to its own errors in one table.

PenstockError
├── InvalidRequest           an error of the caller: a retry does not help
│   ├── MissingParameter     a required field is missing
│   ├── InvalidMessage       the body has characters that are not allowed
│   ├── InvalidReceipt       not a receipt of this queue
│   ├── ExpiredReceipt       the lease of a FIFO receipt has ended
│   ├── NotLeased            the record is deleted or not leased
│   ├── OffsetOutOfRange     the offset is not in the log
│   ├── QuotaExceeded        the limit of this tenant or node is reached
│   └── ProducerRefused      wrong sequence or epoch of a producer, with Kafka's code
├── NotFound
│   └── TopicNotFound
├── Conflict
│   ├── TopicExists          same name, other settings
│   ├── TopicDeletedRecently
│   ├── PurgeInProgress
│   └── VersionConflict      a store entry changed between read and write
├── AccessDenied             the principal is known, but not allowed
├── Overloaded               a later retry may help
│   ├── Throttled
│   ├── InFlightLimit        too many leased records
│   ├── DiskFull             appends are rejected; leases and acks still work
│   ├── Draining             this node is stopping
│   ├── NotLeader            another node leads the partition, or none; nothing was done
│   ├── LeaderMoved          another node leads now; outcome unknown
│   └── NotEnoughReplicas    fewer replicas in sync than the topic requires
├── Damaged                  the log on disk is damaged
└── SetupError               a server cannot start: configuration, files, ports
"""


class PenstockError(Exception):
    """Base of all errors that reach a client or an operator."""

    public = ""  # the text for clients, if the text of the error contains addresses


def client_text(error: PenstockError) -> str:
    """Return the text for clients, without addresses of nodes."""
    return error.public or str(error)


# Exit codes of a command that could not start a server; ``cli/terminal/failure.py`` has all of
# them.
FAILED, USAGE, CONFLICT = 1, 2, 6


class SetupError(PenstockError):
    WHAT = "the server did not start"

    def __init__(self, why: str, do: str = "", *, what: str = WHAT, code: int = FAILED) -> None:
        parts = (what if what != SetupError.WHAT else "", why, do)
        super().__init__(": ".join(part for part in parts if part))
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
        self.held_ms = held_ms  # the reply is delayed: there are very many of these errors


class InFlightLimit(Overloaded):
    pass


class DiskFull(Overloaded):
    pass


class Draining(Overloaded):
    pass


class NotLeader(Overloaded):
    """Nothing was done, so that the call may be sent to the leader at once."""

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
    pass


class NotEnoughReplicas(Overloaded):
    pass


class Damaged(PenstockError):
    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
