"""What the load is asked to do, and what it found: the values that pass between two processes."""

from enum import StrEnum

import msgspec

from benchmarks.load import Latency

RECORD_BYTES = 1_024  # of a record's value; keys and headers are empty


class Driver(StrEnum):
    BYTES = "bytes"  # the bare sink and source
    FRAMES = "frames"  # Kafka requests made beforehand
    LIBRDKAFKA = "librdkafka"
    REDIS = "redis"
    NATS = "nats"


class Action(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    END_TO_END = "end to end"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    driver: Driver
    action: Action
    host: str
    port: int
    topic: str = ""
    partitions: int = 1
    batch_bytes: int = 65_536
    connections: int = 4
    in_flight_max: int = 5  # requests per connection that wait for their answer
    warm_up_s: float = 0.5
    window_s: float = 3.0
    bytes_max: int = 0  # stop after so many bytes of records; 0: the window alone decides
    records: int = 0  # there to be consumed
    rate: int = 0  # records per second of a paced run
    server_pid: int = 0
    cores: list[int] = []


class Result(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    records: int  # within the timed window
    records_in_all: int  # with the warm-up and what came in after the window
    requests: int = 0
    latency: Latency | None = None
    faults: int = 0
    first_fault: str = ""
    missing: int = 0  # sent by a paced run, never received
    server_cpu_s: float = 0.0
    load_cpu_share: float = 0.0  # near 1.0: the generator, not the server, was the limit

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.records_per_s * RECORD_BYTES / 1e6

    @property
    def server_cpu_share(self) -> float:
        """Of one core."""
        return self.server_cpu_s / self.seconds if self.seconds else 0.0

    @property
    def server_cpu_ms_per_mb(self) -> float:
        mb = self.records * RECORD_BYTES / 1e6
        return self.server_cpu_s * 1e3 / mb if mb else 0.0
