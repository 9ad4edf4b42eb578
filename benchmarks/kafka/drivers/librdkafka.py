"""What an application sees: librdkafka through its Python binding, at its ordinary promises
(acks=all, idempotence on).

The binding costs per record, mostly in the generator's own core, so these rates say how the server
does with a real client, and seldom how fast the server is. Records are handed over in lists and
without a callback each; that all of them arrived is seen by the partitions' end offsets.
"""

import threading
import time
from collections.abc import Mapping

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.histogram import Histogram
from benchmarks.kafka.job import RECORD_BYTES, Action, Job, Result
from benchmarks.load import Latency, Meter

FETCH_PARTITION_BYTES = 1_048_576
QUEUE_RECORDS = 100_000
QUEUE_FULL_WAIT_S = 0.002
FLUSH_S_MAX = 30.0
LAST_RECORDS_S_MAX = 5.0
READ_RECORDS = 2_000  # handed over by the binding at once
STALLED_S_MAX = 10.0
CALL_S_MAX = 15.0
STAMP_DIGITS = 20
LOG_LEVEL = 3  # errors; what it says while it shuts down is of no use here
Config = dict[str, str | int | float | bool]


def client_config(host: str, port: int) -> Config:
    return {"bootstrap.servers": f"{host}:{port}", "log_level": LOG_LEVEL}


def producer_config(job: Job, *, linger_ms: float) -> Config:
    return {
        **client_config(job.host, job.port),
        "acks": "all",
        "enable.idempotence": True,
        "batch.size": job.batch_bytes,
        "message.max.bytes": 1_048_576,
        "batch.num.messages": 10_000,
        "linger.ms": linger_ms,
        "queue.buffering.max.messages": QUEUE_RECORDS,
        "queue.buffering.max.kbytes": 2 * QUEUE_RECORDS * RECORD_BYTES // 1_024,
    }


def consumer_config(job: Job) -> Config:
    return {
        **client_config(job.host, job.port),
        "group.id": "benchmark",
        "enable.auto.commit": False,
        "enable.partition.eof": False,
        "max.partition.fetch.bytes": FETCH_PARTITION_BYTES,
        "fetch.wait.max.ms": 100,
        "queued.min.messages": QUEUE_RECORDS,
        # At its default a full queue stops fetching for a second.
        "fetch.queue.backoff.ms": 1,
    }


class Errors:
    """What librdkafka reports from its own threads."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def note(self, error: object) -> None:
        self.count += 1
        self.first = self.first or str(error)


def _end_offsets(consumer: confluent_kafka.Consumer, job: Job) -> int:
    return sum(
        consumer.get_watermark_offsets(
            confluent_kafka.TopicPartition(job.topic, partition), timeout=CALL_S_MAX
        )[1]
        for partition in range(job.partitions)
    )


def produce(job: Job) -> Result:
    errors = Errors()
    producer = confluent_kafka.Producer(
        {**producer_config(job, linger_ms=5), "error_cb": errors.note}
    )
    records = [{"value": b"x" * RECORD_BYTES} for _ in range(job.batch_bytes // RECORD_BYTES)]

    def fill(seconds: float, records_max: int) -> int:
        """Hand in for so long, wait until all is delivered."""
        handed = turn = 0
        until = time.perf_counter() + seconds
        while time.perf_counter() < until and handed < records_max:
            try:
                taken = producer.produce_batch(job.topic, records, partition=turn % job.partitions)
            except BufferError:
                taken = 0
            if taken < len(records):
                # The mark of a refused record would be taken for one of the next call.
                for record in records:
                    record.pop("_error", None)
                producer.poll(QUEUE_FULL_WAIT_S)
            handed += taken
            turn += 1
        left = producer.flush(FLUSH_S_MAX)
        if left:
            errors.note(f"{left} records were not delivered in {FLUSH_S_MAX:.0f} s")
        return handed

    records_max = job.bytes_max // RECORD_BYTES or 2**62
    warm = fill(job.warm_up_s, records_max)
    meter = Meter(job.server_pid)
    handed = fill(job.window_s, max(records_max - warm, 1))
    seconds, server_s, own_s = meter.read()
    consumer = confluent_kafka.Consumer(consumer_config(job))
    try:
        arrived = _end_offsets(consumer, job)
    finally:
        consumer.close()
    if arrived != warm + handed:
        errors.note(f"{warm + handed} records were handed in, {arrived} are there")
    return Result(
        seconds=seconds,
        records=handed,
        records_in_all=arrived,
        faults=errors.count,
        first_fault=errors.first,
        server_cpu_s=server_s,
        load_cpu_share=own_s / seconds,
    )


def consume(job: Job) -> Result:
    """Everything once, from the beginning. Timed from the first records on: what comes before is
    the client finding its way."""
    errors = Errors()
    consumer = confluent_kafka.Consumer({**consumer_config(job), "error_cb": errors.note})
    try:
        consumer.assign(
            [
                confluent_kafka.TopicPartition(job.topic, p, confluent_kafka.OFFSET_BEGINNING)
                for p in range(job.partitions)
            ]
        )
        first = len(consumer.consume(READ_RECORDS, CALL_S_MAX))
        meter = Meter(job.server_pid)
        count = first
        until = time.perf_counter() + job.window_s
        while count < job.records and time.perf_counter() < until:
            got = consumer.consume(READ_RECORDS, 0.1)
            count += sum(record.error() is None for record in got)
        seconds, server_s, own_s = meter.read()
    finally:
        consumer.close()
    return Result(
        seconds=seconds,
        records=count - first,
        records_in_all=count,
        faults=errors.count,
        first_fault=errors.first,
        server_cpu_s=server_s,
        load_cpu_share=own_s / seconds,
    )


class Arrivals:
    """The reading side of a paced run, in a thread: notes how long each record was under way."""

    def __init__(self, job: Job, errors: Errors) -> None:
        self.histogram = Histogram()
        self.count = 0
        self.count_in_all = 0
        self.expected: int | None = None
        self.ready = threading.Event()
        self.measured_from_ns = 2**63
        self._job = job
        self._errors = errors
        self.thread = threading.Thread(target=self._run, name="arrivals", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(consumer_config(self._job))
        try:
            start = confluent_kafka.TopicPartition(self._job.topic, 0, 0)
            consumer.assign([start])
            consumer.get_watermark_offsets(start, timeout=CALL_S_MAX)
            self.ready.set()
            alive_until = time.perf_counter() + STALLED_S_MAX
            while time.perf_counter() < alive_until:
                for record in consumer.consume(READ_RECORDS, 0.001):
                    if record.error() is not None:
                        self._errors.note(record.error())
                        continue
                    alive_until = time.perf_counter() + STALLED_S_MAX
                    self._note(record.value() or b"")
                if self.expected is not None and self.count_in_all >= self.expected:
                    return
        except confluent_kafka.KafkaException as error:
            self._errors.note(error)
            self.ready.set()
        finally:
            consumer.close()

    def _note(self, value: bytes) -> None:
        due_at_ns = int(value[:STAMP_DIGITS])
        self.count_in_all += 1
        if due_at_ns >= self.measured_from_ns:
            self.count += 1
            self.histogram.record((time.perf_counter_ns() - due_at_ns) // 1_000)


def end_to_end(job: Job) -> Result:
    """By the clock: a record's time runs from when it was due."""
    errors = Errors()
    producer = confluent_kafka.Producer(
        {**producer_config(job, linger_ms=0), "error_cb": errors.note}
    )
    arrivals = Arrivals(job, errors)
    arrivals.ready.wait(CALL_S_MAX)
    filler = b"x" * (RECORD_BYTES - STAMP_DIGITS)
    interval_ns = 10**9 // job.rate
    due_at_ns = time.perf_counter_ns()
    measured_from_ns = due_at_ns + int(job.warm_up_s * 1e9)
    until_ns = measured_from_ns + int(job.window_s * 1e9)
    arrivals.measured_from_ns = measured_from_ns
    sent = 0
    meter: Meter | None = None
    while due_at_ns < until_ns and errors.count == 0:
        due_at_ns += interval_ns
        wait_ns = due_at_ns - time.perf_counter_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        if meter is None and due_at_ns >= measured_from_ns:
            meter = Meter(job.server_pid)
        producer.produce(job.topic, b"%020d%b" % (due_at_ns, filler), partition=0)
        producer.poll(0)
        sent += 1
    seconds, server_s, own_s = (meter or Meter(job.server_pid)).read()
    producer.flush(FLUSH_S_MAX)
    arrivals.expected = sent
    arrivals.thread.join(LAST_RECORDS_S_MAX + STALLED_S_MAX)
    return Result(
        seconds=seconds,
        records=arrivals.count,
        records_in_all=arrivals.count_in_all,
        latency=Latency.of(arrivals.histogram) if arrivals.histogram.count else None,
        faults=errors.count,
        first_fault=errors.first,
        missing=sent - arrivals.count_in_all,
        server_cpu_s=server_s,
        load_cpu_share=own_s / seconds,
    )


def run(job: Job) -> Result:
    runs = {Action.PRODUCE: produce, Action.CONSUME: consume, Action.END_TO_END: end_to_end}
    return runs[job.action](job)


def create_topic(
    host: str, port: int, topic: str, *, partitions: int, config: Mapping[str, str]
) -> None:
    """Raises KafkaException. Returns once every partition has a leader."""
    admin = AdminClient(client_config(host, port))
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config))
    for future in admin.create_topics([new], request_timeout=CALL_S_MAX).values():
        future.result(CALL_S_MAX)
    deadline = time.perf_counter() + CALL_S_MAX
    while time.perf_counter() < deadline:
        found = admin.list_topics(topic, timeout=CALL_S_MAX).topics[topic]
        if len(found.partitions) == partitions and all(
            each.leader >= 0 and each.error is None for each in found.partitions.values()
        ):
            return
        time.sleep(0.05)
    raise confluent_kafka.KafkaException(f"{topic} has partitions without a leader")


def delete_topic(host: str, port: int, topic: str) -> None:
    admin = AdminClient(client_config(host, port))
    for future in admin.delete_topics([topic], request_timeout=CALL_S_MAX).values():
        future.result(CALL_S_MAX)
