"""What one attempt to lease brought: deliveries, records due for the dead-letter topic, and the
flush that makes the leases last."""

import msgspec

from penstock.broker.flush import Flush
from penstock.cursor.outcome import Pick
from penstock.model.message import Delivery


class Taken(msgspec.Struct, gc=False):
    deliveries: list[Delivery]
    dead: list[Pick]
    flush: Flush | None = None
    is_over_limit: bool = False
