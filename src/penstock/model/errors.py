"""The base classes of errors. Each protocol maps them to its own errors in one table."""


class PenstockError(Exception):
    public = ""  # the text for clients, if the error's own text contains addresses


def client_text(error: PenstockError) -> str:
    return error.public or str(error)


# Exit codes of a command that could not start a server (``cli/terminal/failure.py`` has all).
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
    """The request is invalid, and a retry does not help."""


class MissingParameter(InvalidRequest):
    def __init__(self, name: str) -> None:
        super().__init__(f"The request must contain the parameter {name}.")
        self.name = name


class InvalidMessage(InvalidRequest): ...


class InvalidReceipt(InvalidRequest):
    """The receipt handle does not belong to this queue."""


class ExpiredReceipt(InvalidRequest):
    """The lease of a FIFO message has ended."""


class NotLeased(InvalidRequest): ...


class OffsetOutOfRange(InvalidRequest):
    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside of [{start_offset}, {end_offset}]")
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset


class ProducerRefused(InvalidRequest):
    """The sequence number or epoch of a producer is wrong; ``code`` is Kafka's error code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class QuotaExceeded(InvalidRequest): ...


class NotFound(PenstockError): ...


class TopicNotFound(NotFound):
    def __init__(self, name: str = "") -> None:
        super().__init__("The specified queue does not exist.")
        self.name = name


class Conflict(PenstockError): ...


class TopicExists(Conflict):
    """A topic of the same name exists with other settings."""


class TopicDeletedRecently(Conflict): ...


class PurgeInProgress(Conflict): ...


class VersionConflict(Conflict): ...


class AccessDenied(PenstockError): ...


class Overloaded(PenstockError):
    """The request cannot be served now; a later retry may succeed."""


class Throttled(Overloaded):
    def __init__(self, message: str, *, retry_after_ms: int = 1_000, held_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.held_ms = held_ms  # delay of the reply, for clients with very many of these errors


class InFlightLimit(Overloaded): ...


class DiskFull(Overloaded):
    """The disk is full: appends are rejected, leases and acks still work."""


class Draining(Overloaded): ...


class NotLeader(Overloaded):
    """This node does not lead the partition, so the call had no effect."""

    def __init__(self, place: str, *, leader: int = -1, epoch: int = -1) -> None:
        led = f"led by node {leader}" if leader >= 0 else "not led by this node"
        super().__init__(f"{place} is {led}.")
        self.place = place  # topic id and partition
        self.leader = leader
        self.epoch = epoch


class LeaderMoved(Overloaded):
    """Another node leads the partition now, and the outcome of the call is unknown."""


class NotEnoughReplicas(Overloaded): ...


class Damaged(PenstockError):
    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
