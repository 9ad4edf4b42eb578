import math
import timeit
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from penstock import __version__
from penstock.telemetry import families, metrics
from penstock.telemetry.families import BUCKETS_SECONDS, FAMILIES, Family, MetricKind
from penstock.telemetry.metrics import RENDERED_SAMPLES, Meter, render_samples


def steps_of(steps: Generator[None, None, list[bytes]]) -> list[bytes]:
    """The result of a generator that pauses now and then."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[bytes] = end.value
            return found


def parsed(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample as the Prometheus client library reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value_of(text: bytes, name: str, **labels: str) -> float:
    return parsed(text)[name, frozenset(labels.items())]


def test_a_fresh_meter_shows_zeroes_and_what_runs() -> None:
    text = Meter().render()
    assert value_of(text, "penstock_messages_sent_total") == 0
    assert value_of(text, "penstock_log_fsync_duration_seconds_count") == 0
    info = next(labels for name, labels in parsed(text) if name == "penstock_build_info")
    assert dict(info)["version"] == __version__


def test_messages_and_bytes_are_counted() -> None:
    meter = Meter()
    meter.sent(3, 300)
    meter.sent(1, 5)
    meter.received(2, 200)
    meter.deleted(2)
    meter.messages_dead_lettered += 4
    meter.messages_expired += 5
    meter.dedup_hits += 1
    meter.appended(4_096, 0.003)
    text = meter.render()
    expected = {
        "penstock_messages_sent_total": 4,
        "penstock_bytes_in_total": 305,
        "penstock_messages_received_total": 2,
        "penstock_bytes_out_total": 200,
        "penstock_messages_deleted_total": 2,
        "penstock_messages_dead_lettered_total": 4,
        "penstock_messages_expired_total": 5,
        "penstock_dedup_hits_total": 1,
        "penstock_log_written_bytes_total": 4_096,
        "penstock_log_append_duration_seconds_count": 1,
    }
    assert {name: value_of(text, name) for name in expected} == expected


def test_requests_are_counted_by_result_and_timed_by_call() -> None:
    meter = Meter()
    meter.request("SendMessage", "json", "200", 0.0004)
    meter.request("SendMessage", "json", "200", 0.002)
    meter.request("SendMessage", "json", "QueueDoesNotExist", 60.0)
    text = meter.render()
    call = {"api": "SendMessage", "protocol": "json"}
    assert value_of(text, "penstock_requests_total", code="200", **call) == 2
    assert value_of(text, "penstock_requests_total", code="QueueDoesNotExist", **call) == 1
    bucket = "penstock_request_duration_seconds_bucket"
    assert value_of(text, bucket, le="0.0005", **call) == 1
    assert value_of(text, bucket, le="0.001", **call) == 1
    assert value_of(text, bucket, le="0.0025", **call) == 2
    assert value_of(text, bucket, le="5", **call) == 2
    assert value_of(text, bucket, le="+Inf", **call) == 3
    assert value_of(text, "penstock_request_duration_seconds_count", **call) == 3
    total = value_of(text, "penstock_request_duration_seconds_sum", **call)
    assert total == pytest.approx(60.0024)


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=50))
@settings(max_examples=30, deadline=None)  # a busy machine is no fault of the meter
def test_each_bucket_counts_what_is_at_most_its_bound(observed: list[float]) -> None:
    meter = Meter()
    for seconds in observed:
        meter.fsyncs.observe(seconds)
    text = meter.render()
    for bound in BUCKETS_SECONDS:
        shown = value_of(
            text, "penstock_log_fsync_duration_seconds_bucket", le=metrics.number_text(bound)
        )
        assert shown == sum(seconds <= bound for seconds in observed)


def test_there_are_twelve_buckets_from_half_a_millisecond_to_five_seconds() -> None:
    assert len(BUCKETS_SECONDS) == 12
    assert (BUCKETS_SECONDS[0], BUCKETS_SECONDS[-1]) == (0.0005, 5.0)
    assert list(BUCKETS_SECONDS) == sorted(BUCKETS_SECONDS)


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=3, max_size=3))
@settings(max_examples=60)
def test_any_label_value_comes_through_unchanged(values: list[str]) -> None:
    text = metrics.sample_lines(
        Family("penstock_x", MetricKind.GAUGE, "Anything.", ("a", "b", "c")), [(values, 1.5)]
    )
    # Only a newline ends a line in this format; the parser splits on nothing else.
    assert all("\n" not in line for line in text)
    label_text = text[2][len("penstock_x{") : text[2].rindex("}")]
    read: list[str] = []
    for name in ("a", "b", "c"):
        assert label_text.startswith(f'{name}="')
        label_text = label_text[3:]
        value = ""
        while not label_text.startswith('"'):
            step = 2 if label_text[0] == "\\" else 1
            value += {"\\\\": "\\", '\\"': '"', "\\n": "\n"}.get(label_text[:step], label_text[0])
            label_text = label_text[step:]
        read.append(value)
        label_text = label_text[1:].removeprefix(",")
    assert read == values


@pytest.mark.parametrize("value", ['say "hi"', "back\\slash", "a\nb", "\\n", "{}=,", "ünï", ""])
def test_the_client_librarys_parser_reads_our_escapes(value: str) -> None:
    meter = Meter()
    meter.request(value, "json", "200", 0.1)
    labels = {"api": value, "protocol": "json", "code": "200"}
    assert value_of(meter.render(), "penstock_requests_total", **labels) == 1


@pytest.mark.parametrize(
    "value", [0, 1, -1, 0.5, 1e300, 123_456_789.125, 2**53, math.inf, -math.inf, 1e-9]
)
def test_numbers_are_written_without_loss(value: float) -> None:
    (text,) = steps_of(render_samples({families.DISK_FREE: [((), value)]}))
    assert value_of(text, "penstock_disk_free_bytes") == value
    assert metrics.number_text(math.nan) == "NaN"


def test_samples_in_several_pieces_are_one_family() -> None:
    labels = [("a", "r", str(number)) for number in range(2 * RENDERED_SAMPLES + 1)]
    samples = [(each, number) for number, each in enumerate(labels)]
    pieces = steps_of(render_samples({families.OBJECT_QUEUE_WAITS: samples}))
    assert len(pieces) == 3
    whole = metrics.sample_lines(families.OBJECT_QUEUE_WAITS, samples)
    assert b"".join(pieces).decode().splitlines() == whole


def test_help_and_type_stand_once_before_each_family() -> None:
    meter = Meter()
    for n in range(3):
        meter.request(f"Api{n}", "json", "200", 0.1)
    lines = meter.render().decode().splitlines()
    heads = [line for line in lines if line.startswith("#")]
    assert len(heads) == len(set(heads))
    assert "# TYPE penstock_requests_total counter" in heads
    assert "# TYPE penstock_request_duration_seconds histogram" in heads


def test_every_name_is_declared_once_with_a_help_sentence() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    assert all(family.help.endswith(".") for family in FAMILIES)
    assert all(family.name.startswith("penstock_") for family in FAMILIES)


def test_levels_are_asked_for_at_each_scrape() -> None:
    meter = Meter()
    levels = iter((5, 6))
    meter.register_collector(lambda: [(families.WAITS, ((), next(levels)))])
    meter.register_collector(
        lambda: [(families.QUEUE_MESSAGES, ((state,), 1)) for state in ("visible", "delayed")]
    )
    assert value_of(meter.render(), "penstock_waits") == 5
    text = meter.render([(families.QUEUES, ((), 9))])
    assert value_of(text, "penstock_waits") == 6
    assert value_of(text, "penstock_queues") == 9
    assert value_of(text, "penstock_queue_messages", state="delayed") == 1


def test_a_client_inventing_names_cannot_grow_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 10)
    meter = Meter()
    for n in range(500):
        meter.request(f"Invented{n}", "json", "InvalidAction", 0.001)
    text = meter.render()
    other = {"api": "other", "protocol": "other", "code": "other"}
    assert value_of(text, "penstock_requests_total", **other) == 490
    assert sum(name == "penstock_requests_total" for name, _ in parsed(text)) == 11
    assert sum(name == "penstock_request_duration_seconds_count" for name, _ in parsed(text)) == 11


def test_counting_is_cheap_enough_for_every_message() -> None:
    # Twenty times the measured cost, so that a busy machine does not fail it but a lock would.
    meter = Meter()
    meter.request("SendMessage", "json", "200", 0.001)
    rounds = 20_000
    sent = min(timeit.repeat(lambda: meter.sent(1, 100), number=rounds, repeat=5)) / rounds
    request = (
        min(
            timeit.repeat(
                lambda: meter.request("SendMessage", "json", "200", 0.001), number=rounds, repeat=5
            )
        )
        / rounds
    )
    assert sent < 4e-6
    assert request < 10e-6


def test_a_histogram_that_somebody_else_keeps_is_shown_as_it_is_at_the_scrape() -> None:
    meter, kept = Meter(), metrics.Histogram()
    meter.register_histogram(families.STORE_DURATION, ("txn",), kept)
    meter.register_histogram(families.STORE_DURATION, ("range",), metrics.Histogram())
    kept.observe(0.002)
    name = "penstock_store_request_duration_seconds_count"
    assert value_of(meter.render(), name, request="txn") == 1
    kept.observe(0.002)
    assert value_of(meter.render(), name, request="txn") == 2
    assert value_of(meter.render(), name, request="range") == 0
