"""Dead-letter rules that need the catalog: which queues may use which dead-letter queue."""

from collections.abc import Sequence

from penstock.frontend.sqs.rules import queue_policies
from penstock.model.ports import Catalog
from penstock.model.topic import Redrive, Topic
from penstock.wire.aws.faults import invalid_value


def check_target(catalog: Catalog, source: Topic, redrive: Redrive) -> None:
    """Raise InvalidParameterValue if ``source`` may not use this dead-letter queue."""
    target = catalog.find_arn(redrive.target_arn)
    reason = "Dead letter target does not exist." if target is None else _objection(target, source)
    if reason is not None:
        raise invalid_value(queue_policies.redrive_text(redrive), "RedrivePolicy", reason)


def _objection(target: Topic, source: Topic) -> str | None:
    if (target.account, target.region) != (source.account, source.region):
        return "Dead-letter target owner should be same as the source."
    if target.is_share:
        return "Dead-letter target must be a queue that messages can be sent to."
    if target.kind is not source.kind:
        return "Dead-letter target must be same type of queue as the source."
    if target.name == source.name and source.is_fifo:
        # A standard queue may be its own target: the message goes to the end of the queue. In a
        # FIFO queue, deduplication would drop the message when it returns a second time.
        return "Dead-letter target of a FIFO queue must be another queue."
    allow = queue_policies.parse_redrive_allow(target.settings.redrive_allow or "")
    if allow is not None and not allow.allows(source.arn):
        return "The dead-letter target's RedriveAllowPolicy does not allow this source queue."
    return None


def sources_of(catalog: Catalog, target: Topic) -> Sequence[Topic]:
    """Return the queues that use ``target`` as their dead-letter queue, sorted by name."""
    return [
        topic
        for topic in catalog.topics(target.account, target.region)
        if topic.settings.redrive is not None and topic.settings.redrive.target_arn == target.arn
    ]
