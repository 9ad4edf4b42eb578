"""The errors of the Kafka client. All can be pickled, for Spark workers.

KafkaTrouble
├── KafkaRefused       the server replied with an error code
└── Unreachable        no connection
    ├── HungUp         the server closed the connection without a reply: outcome unknown
    ├── TimedOut       no reply in time
    └── NotKafka       another protocol than configured, or an untrusted certificate
"""

from penstock.wire.kafka.faults import ErrorCode

# After these the client looks up the leaders again.
STALE_LEADER_CODES = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class KafkaTrouble(Exception):
    @property
    def is_passing(self) -> bool:
        """Whether a retry may succeed."""
        return False


class KafkaRefused(KafkaTrouble):
    """``subject``: the rejected part of the call, such as a topic and partition; empty: all."""

    def __init__(self, code: int, message: str = "", subject: str = "") -> None:
        super().__init__(code, message, subject)
        self.code = code
        self.message = message
        self.subject = subject

    @property
    def name(self) -> str:
        return ErrorCode(self.code).name if self._is_known else f"code {self.code}"

    @property
    def is_passing(self) -> bool:
        # Other clients wait for a missing topic, which may be about to be created. Here a user has
        # named the topic, and gets the error at once.
        return (
            self._is_known
            and ErrorCode(self.code).is_retriable
            and self.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        )

    @property
    def _is_known(self) -> bool:
        return self.code in ErrorCode._value2member_map_

    def __str__(self) -> str:
        text = self.message or (ErrorCode(self.code).message if self._is_known else "")
        reason = f"{text} ({self.name})" if text else self.name
        return f"{self.subject}: {reason}" if self.subject else reason


class Unreachable(KafkaTrouble):
    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    @property
    def is_passing(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"cannot reach {self.address}: {self.reason}"


class HungUp(Unreachable):
    pass


class NotKafka(Unreachable):
    @property
    def is_passing(self) -> bool:
        return False


class TimedOut(Unreachable):
    def __init__(self, address: str, waited_s: float) -> None:
        Exception.__init__(self, address, waited_s)
        self.address = address
        self.reason = f"no reply in {waited_s:g} s"
        self.waited_s = waited_s
