"""What has been weighed already: who may do what with which queue, and what that counts against.

Almost every request is of a sort that came a moment ago: the same caller, the same action, the same
URL. For these one look-up stands for all there is to find out: the queue's policy and the caller's,
the tenant and its limits, where its use is counted. A pass is only kept where the answer was yes
and nothing about the single request (its address, the hour) was asked for; everything else is
weighed each time.

All passes are void as soon as anything changes in the identities. One is good for the very topic
that was weighed: a queue that has changed, say its policy, is another object, and whoever goes by a
pass has looked the queue up first. That is asked of the catalog each time rather than told by it,
since a catalog that has no room may forget a queue without a word, and then hears of no changes."""

from typing import Final

from penstock.frontend.throttle import Way
from penstock.frontend.usage import Counts
from penstock.model.identity import Tenant
from penstock.model.ports import Identities
from penstock.model.topic import Topic

PASSES_MAX: Final = 20_000  # about 500 bytes each; beyond it all are weighed anew

Place = tuple[str, str, str, str, str]  # account, user, permission, URL as it was given, region


class Pass:
    __slots__ = ("arn", "counted_ms", "counts", "tenant", "topic", "way")

    def __init__(self, topic: Topic, tenant: Tenant | None) -> None:
        self.topic = topic
        self.arn = topic.arn
        self.tenant = tenant  # the caller's
        self.way: Way | None = None  # through the tenant's limits; found by the throttle
        # Where its use is counted, in the minute that began then; found by the metering.
        self.counts: Counts | None = None
        self.counted_ms = 0


class Passes:
    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._epoch = identities.epoch
        self._kept: dict[Place, Pass] = {}

    def find(self, place: Place) -> Pass | None:
        """Good for its topic, if the catalog still has that."""
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._kept.clear()
        return self._kept.get(place)

    def keep(self, place: Place, topic: Topic) -> Pass:
        """For what was just allowed, in the same turn as it was looked for."""
        assert self._epoch == self._identities.epoch, "it was looked for first"
        if len(self._kept) >= PASSES_MAX:
            self._kept.clear()
        kept = self._kept[place] = Pass(topic, self._identities.tenant(place[0]))
        return kept
