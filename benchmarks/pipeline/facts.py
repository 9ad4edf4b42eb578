"""Facts of usage as front ends write them, and what they add up to."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.pipeline.facts.usage_sums import COUNTS, HOUR_MS
from penstock.wire.facts.usage import UsageColumns, UsageFacts, UsageRow, encode

BEGIN_MS = 1_767_225_600_000  # 2026-01-01
_OPS = ("sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage", "kafka:Write", "kafka:Read")
_REFUSED = ("throttled", "denied", "failed")

Totals = dict[tuple[int, str, str, str], dict[str, int]]


def make_facts(
    count: int, *, rows: int, seed: int = 7, nodes: int = 3
) -> list[tuple[UsageFacts, bytes]]:
    """Records of some nodes, a minute apart, each with so many rows; some hours come late."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        node, minute = number % nodes, number // nodes
        late = chance.random() < 0.01
        minute_ms = BEGIN_MS + (minute - (90 if late and minute > 90 else 0)) * 60_000
        columns = UsageColumns()
        fields = zip(*(_row(chance) for _ in range(rows)), strict=True)
        for name, values in zip(UsageRow.__struct_fields__, fields, strict=True):
            setattr(columns, name, list(values))
        facts = UsageFacts(
            v=1,
            node=f"node-{node}",
            incarnation=f"{seed:08x}{node:08x}",
            flush=minute + 1,
            minute_ms=minute_ms,
            written_at_ms=BEGIN_MS + (minute + 1) * 60_000,
            columns=columns,
        )
        made.append((facts, encode(facts)))
    return made


def _row(chance: random.Random) -> tuple[Any, ...]:
    tenant, queue = f"{chance.randrange(50):012d}", f"queue-{chance.randrange(20)}"
    if chance.random() < 0.1:
        return (tenant, "eu", queue, "storage", "storage", *[0] * 8, chance.randrange(10**9))
    numbers = [chance.randrange(1, 1_000) for _ in COUNTS[: -len(_REFUSED)]]
    return (tenant, "eu", queue, "calls", chance.choice(_OPS), *numbers, 0, 0, 0, 0)


def totals_of(facts: Iterable[UsageFacts]) -> Totals:
    found: Totals = {}
    for each in facts:
        hour = each.minute_ms // HOUR_MS
        for row in each.columns.rows():
            sums = found.setdefault((hour, row.tenant, row.resource, row.op), _zeros())
            for name in COUNTS:
                sums[name] += getattr(row, name)
            sums["byte_minutes"] += row.stored_bytes
    return found


def totals_of_rows(rows: Iterable[Mapping[str, Any]]) -> Totals:
    """Of a table's rows, as any reader gets them."""
    found: Totals = {}
    for row in rows:
        if row["kind"] not in ("calls", "storage"):
            continue
        key = (int(row["hour"].timestamp()) // 3_600, row["tenant"], row["resource"], row["op"])
        sums = found.setdefault(key, _zeros())
        for name in sums:
            sums[name] += row[name]
    return found


def _zeros() -> dict[str, int]:
    return dict.fromkeys((*COUNTS, "byte_minutes"), 0)
