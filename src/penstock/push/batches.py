"""Divides the messages of a subscription into requests."""

from collections.abc import Sequence

from penstock.push.delivery_plan import Plan
from penstock.push.outcomes import Item


class Batches:
    """Divides messages into requests, and keeps a batch that is not full until there are more
    messages. The owner sends it when it has waited long enough."""

    def __init__(self) -> None:
        self.waiting: list[Item] = []
        self._waiting_bytes = 0

    def split(self, items: Sequence[Item], plan: Plan, *, may_wait: bool) -> list[list[Item]]:
        """Return requests, beginning with the batch that waited. If ``may_wait``, the last batch
        waits unless it is full: it has ``batch_max`` messages, or the next one does not fit. A
        batch of an ordered subscription has messages of one group only."""
        requests: list[list[Item]] = []
        size = 0
        if may_wait and self.waiting:
            size = self._waiting_bytes
            requests.append(self.take())
        last: object = None
        for item in items:
            message = item.message.record.message
            group = (item.message.partition, message.group) if plan.is_ordered else None
            size += len(message.body)
            has_room = requests and len(requests[-1]) < plan.batch_max
            if has_room and group == last and size <= plan.request_bytes:
                requests[-1].append(item)
            else:
                requests.append([item])
                size = len(message.body)
            last = group
        if may_wait and requests and len(requests[-1]) < plan.batch_max:
            self.waiting, self._waiting_bytes = requests.pop(), size
        return requests

    def take(self) -> list[Item]:
        """Return the batch that waits, which then waits no longer."""
        items, self.waiting = self.waiting, []
        return items
