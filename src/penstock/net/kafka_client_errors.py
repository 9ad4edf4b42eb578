"""How a call of the Kafka client can fail.

KafkaTrouble
├── KafkaRefused       the server understood and said no; its code says whether to ask again
└── Unreachable        nobody answers there
    ├── HungUp         the connection was opened, and closed by the server without an answer
    ├── TimedOut       … within the time allowed
    └── NotKafka       … in a way that we understand or believe

All of them can be pickled, so that a worker's error arrives where its work was ordered.
"""

from penstock.wire.kafka.faults import ErrorCode

# Upon these the cluster is asked anew who leads a partition.
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
        """Whether the same call may succeed in a moment."""
        return False


class KafkaRefused(KafkaTrouble):
    """``subject`` is what was refused, such as a topic and partition; empty: the whole call."""

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
        # A topic that is not there is what Kafka's clients wait for, since it may just be made. We
        # are asked about topics that somebody has named, and say at once that there is none.
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
    """Nobody can say whether what was asked last has been done."""


class NotKafka(Unreachable):
    """Somebody answers who does not speak Kafka, or not in the way we were told to: TLS for
    plain text, a certificate that nobody vouches for."""

    @property
    def is_passing(self) -> bool:
        return False


class TimedOut(Unreachable):
    def __init__(self, address: str, waited_s: float) -> None:
        Exception.__init__(self, address, waited_s)
        self.address = address
        self.reason = f"no answer in {waited_s:g} s"
        self.waited_s = waited_s
