"""The metrics of push, as a scrape shows them."""

from penstock.push.metrics import Outcome, PushMetrics
from penstock.telemetry import families
from penstock.telemetry.metrics import Meter


def scraped(metrics: PushMetrics) -> dict[str, str]:
    meter = Meter()
    metrics.register(meter)
    lines = meter.render().decode().splitlines()
    values = (line.rpartition(" ") for line in lines if line.startswith("penstock_push_"))
    return {name.removeprefix("penstock_push_"): value for name, _, value in values}


def test_every_metric_of_push_has_a_value() -> None:
    metrics = PushMetrics()
    metrics.attempt("sqs", Outcome.DELIVERED, 3)
    metrics.attempt("https", Outcome.RETRY)
    metrics.refused["denied"] += 2
    metrics.lost = 4
    metrics.signatures = 5
    metrics.in_flight, metrics.waiting_retries, metrics.breakers_open = 6, 7, 8
    metrics.out_of_step = 9
    metrics.slots["held"] = 10
    metrics.fan_outs.observe(0.002)
    metrics.durations["https"].observe(0.3)
    found = scraped(metrics)
    expected = {
        'attempts_total{protocol="sqs",outcome="delivered"}': "3",
        'attempts_total{protocol="https",outcome="retry"}': "1",
        'refused_total{reason="denied"}': "2",
        "lost_total": "4",
        "signatures_total": "5",
        "in_flight": "6",
        "waiting_retries": "7",
        "breaker_open": "8",
        "out_of_step": "9",
        'slots{which="held"}': "10",
        "fan_out_seconds_count": "1",
        'duration_seconds_count{protocol="https"}': "1",
    }
    assert {name: found.get(name) for name in expected} == expected
    declared = {one.name for one in families.FAMILIES if one.name.startswith("penstock_push_")}
    shown = {name.partition("{")[0].removesuffix("_count") for name in expected}
    assert {name.removeprefix("penstock_push_") for name in declared} == shown
