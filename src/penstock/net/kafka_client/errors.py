"""The errors of the Kafka client, which can be pickled for Spark workers."""

from penstock.wire.kafka.faults import ErrorCode

# After these errors the client looks up the leaders again.
_STALE = (
    "LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REPLICA_NOT_AVAILABLE KAFKA_STORAGE_ERROR"
    " FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH UNKNOWN_TOPIC_OR_PARTITION"
)
STALE_LEADER_CODES = frozenset(ErrorCode[name] for name in _STALE.split())


class KafkaTrouble(Exception):
    is_passing = False  # whether a retry may succeed


class KafkaRefused(KafkaTrouble):
    """The server replied with an error code. ``subject`` is the rejected part of the call, such as
    a topic and partition; empty if the whole call was rejected."""

    def __init__(self, code: int, message: str = "", subject: str = "") -> None:
        super().__init__(code, message, subject)
        self.code = code
        self.message = message
        self.subject = subject
        known = ErrorCode(code) if code in ErrorCode._value2member_map_ else None
        self.name = f"code {code}" if known is None else known.name
        self._meaning = "" if known is None else known.message
        # Other clients wait for a missing topic, which may be about to be created. Here a user has
        # named the topic, and gets the error at once.
        missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        self.is_passing = known is not None and known.is_retriable and known not in missing

    def __str__(self) -> str:
        text = self.message or self._meaning
        reason = f"{text} ({self.name})" if text else self.name
        return f"{self.subject}: {reason}" if self.subject else reason


class Unreachable(KafkaTrouble):
    is_passing = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot reach {self.address}: {self.reason}"


class HungUp(Unreachable):
    """The server closed the connection without a reply, so the outcome is unknown."""


class NotKafka(Unreachable):
    """The server does not use the configured protocol, or its certificate is not trusted."""

    is_passing = False


class TimedOut(Unreachable):
    def __init__(self, address: str, waited_s: float) -> None:
        Exception.__init__(self, address, waited_s)
        self.address = address
        self.reason = f"no reply in {waited_s:g} s"
        self.waited_s = waited_s
