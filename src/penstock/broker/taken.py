"""What one attempt to lease brought: deliveries, records due for the dead-letter topic, and the
flush that makes the leases last."""

from collections.abc import Awaitable, Callable

import msgspec

from penstock.broker.flush import Flush
from penstock.cursor.outcome import Pick
from penstock.model.message import Delivery


class Taken(msgspec.Struct, gc=False):
    deliveries: list[Delivery]
    dead: list[Pick]
    flush: Flush | None = None
    is_over_limit: bool = False
    late: list[Pick] = []  # leased too: ``finish`` reads their records, from a large batch
    finish: Callable[["Taken"], Awaitable[None]] | None = None  # set if some are late
    # Nothing was found so far, and there is more to look through: ask again after ``Leases.ready``.
    is_cut: bool = False
