"""The metrics of push. Code that pushes adds to the counters and sets the gauges; a scrape reads
them. The names and help texts are in ``telemetry/families.py``."""

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.telemetry.metrics import Histogram, Meter

PROTOCOLS: Final = ("http", "https")  # of endpoints whose requests are timed


class Outcome(StrEnum):
    """How an attempt to push a message ended."""

    DELIVERED = "delivered"
    RETRY = "retry"  # failed, and will be repeated
    DEAD = "dead"  # failed, and the message is in the dead-letter queue
    DROPPED = "dropped"  # failed, and there is no dead-letter queue that takes the message


class PushMetrics:
    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str]] = Counter()  # by protocol and outcome
        self.refused: Counter[str] = Counter()  # by reason
        self.lost = 0
        self.signatures = 0
        self.fan_outs = Histogram()
        self.durations = {protocol: Histogram() for protocol in PROTOCOLS}
        self.measure: Callable[[], None] = lambda: None  # sets the gauges before a scrape
        # Gauges:
        self.in_flight = 0
        self.waiting_retries = 0
        self.breakers_open = 0
        self.out_of_step = 0
        self.slots: dict[str, int] = {}  # "held", and subscriptions that are "waiting" for one

    def attempt(self, protocol: str, outcome: Outcome, count: int = 1) -> None:
        self.attempts[protocol, outcome] += count

    def register(self, meter: Meter) -> None:
        meter.register_collector(self._collect)
        meter.register_histogram(families.PUSH_FAN_OUT, (), self.fan_outs)
        for protocol, durations in self.durations.items():
            meter.register_histogram(families.PUSH_DURATION, (protocol,), durations)

    def _collect(self) -> Iterator[tuple[Family, Sample]]:
        self.measure()
        for labels, count in self.attempts.items():
            yield families.PUSH_ATTEMPTS, (labels, count)
        for reason, count in self.refused.items():
            yield families.PUSH_REFUSED, ((reason,), count)
        for which, count in self.slots.items():
            yield families.PUSH_SLOTS, ((which,), count)
        for family, number in (
            (families.PUSH_LOST, self.lost),
            (families.PUSH_SIGNATURES, self.signatures),
            (families.PUSH_IN_FLIGHT, self.in_flight),
            (families.PUSH_WAITING_RETRIES, self.waiting_retries),
            (families.PUSH_BREAKER_OPEN, self.breakers_open),
            (families.PUSH_OUT_OF_STEP, self.out_of_step),
        ):
            yield family, ((), number)
