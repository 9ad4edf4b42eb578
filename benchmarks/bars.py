"""The bars: what has to hold on the machine the figures come from, and whether it did.

Most are ratios between two systems measured minutes apart on the same machine, because those
travel; the rest are promises to a user and count in seconds and megabytes.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from benchmarks.backlog import Backlog
from benchmarks.load import Result

MB = 1e6


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds: by system, then by scenario."""

    results: dict[str, dict[str, Result]]
    backlog: Backlog | None = None
    empty_start_s: float | None = None

    def rate(self, system: str, scenario: str) -> float | None:
        result = self.results.get(system, {}).get(scenario)
        return None if result is None else result.messages_per_s

    def ratio(self, system: str, scenario: str, other: str, other_scenario: str) -> float | None:
        above, below = self.rate(system, scenario), self.rate(other, other_scenario)
        return above / below if above is not None and below else None

    def latency_ms(self, system: str, scenario: str, name: str) -> float | None:
        result = self.results.get(system, {}).get(scenario)
        if result is None or name not in result.latencies:
            return None
        return result.latencies[name].p99_us / 1_000


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    UNKNOWN = "not measured"


class Bar(msgspec.Struct, frozen=True):
    title: str
    value_of: Callable[[Figures], float | None]
    bound: float
    unit: str = "×"
    is_ceiling: bool = False

    def judge(self, figures: Figures) -> tuple[float | None, Verdict]:
        value = self.value_of(figures)
        if value is None:
            return None, Verdict.UNKNOWN
        holds = value < self.bound if self.is_ceiling else value >= self.bound
        return value, Verdict.MET if holds else Verdict.MISSED

    @property
    def condition(self) -> str:
        return f"{'<' if self.is_ceiling else '≥'} {self.bound:g} {self.unit}".replace(" ×", "×")


def _ratio(
    system: str, scenario: str, other: str, other_scenario: str = ""
) -> Callable[[Figures], float | None]:
    return lambda figures: figures.ratio(system, scenario, other, other_scenario or scenario)


def _backlog(value_of: Callable[[Backlog], float]) -> Callable[[Figures], float | None]:
    return lambda figures: None if figures.backlog is None else value_of(figures.backlog)


NEVER, ALWAYS = "penstock-never", "penstock-always"

# Peers keep messages in memory only, so they are compared with fsync never, which still writes
# every message to the kernel; what fsync always costs stands in the table of ratios.
BARS: tuple[Bar, ...] = (
    Bar("send, fsync never / bare", _ratio(NEVER, "send", "bare"), 0.15),
    Bar("send, fsync always / bare", _ratio(ALWAYS, "send", "bare"), 0.08),
    Bar(
        "receive + delete cycles / send, fsync never",
        _ratio(NEVER, "receive_delete", NEVER, "send"),
        0.35,
    ),
    Bar(
        "receive + delete cycles / send, fsync always",
        _ratio(ALWAYS, "receive_delete", ALWAYS, "send"),
        0.35,
    ),
    Bar("send / moto", _ratio(NEVER, "send", "moto"), 20),
    Bar("receive + delete / moto", _ratio(NEVER, "receive_delete", "moto"), 20),
    Bar("send / LocalStack", _ratio(NEVER, "send", "localstack"), 20),
    Bar("receive + delete / LocalStack", _ratio(NEVER, "receive_delete", "localstack"), 20),
    Bar("send / ElasticMQ", _ratio(NEVER, "send", "elasticmq"), 1.0),
    Bar("receive + delete / ElasticMQ", _ratio(NEVER, "receive_delete", "elasticmq"), 1.0),
    Bar(
        "end to end p99 at 1,000 msg/s, fsync always",
        lambda figures: figures.latency_ms(ALWAYS, "end_to_end", "end to end"),
        10,
        "ms",
        is_ceiling=True,
    ),
    Bar(
        "memory with the backlog",
        _backlog(lambda backlog: backlog.rss_bytes / MB),
        150,
        "MB",
        is_ceiling=True,
    ),
    Bar(
        "restart with the backlog, after a stop",
        _backlog(lambda backlog: backlog.restart_s),
        3,
        "s",
        is_ceiling=True,
    ),
    Bar(
        "restart with the backlog, after SIGKILL",
        _backlog(lambda backlog: backlog.restart_after_kill_s),
        3,
        "s",
        is_ceiling=True,
    ),
    Bar(
        "receive from the backlog / from a nearly empty queue",
        _backlog(lambda backlog: backlog.receive_ratio),
        0.9,
    ),
    Bar("start, empty", lambda figures: figures.empty_start_s, 1, "s", is_ceiling=True),
)
