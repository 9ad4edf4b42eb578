"""Access to one queue: the policy of the queue and, for a share, the policy of its source topic."""

from collections.abc import Callable

from penstock.frontend.decisions import Decisions
from penstock.model.identity import Caller, Circumstances
from penstock.model.ports import Catalog
from penstock.model.topic import Topic
from penstock.wire.aws.access import Decision


def decide_on_queue(
    decisions: Decisions,
    everything: Catalog,
    caller: Caller,
    action: str,
    *,
    arn: str,
    owner: str,
    topic: Topic | None,
    circumstances: Callable[[], Circumstances],
) -> Decision:
    """Decide whether ``caller`` may do ``action`` on the queue ``arn``; ``topic`` is None if the
    queue does not exist.

    A share (``topic:group``) reads the messages of its source topic, so an explicit deny on the
    source applies to the share as well. An allow on the source does not: a right on the share alone
    is enough. ``everything`` finds the source, which may be a stream."""
    policy = None if topic is None else topic.settings.policy
    decision = decisions.decide(
        caller, action, arn=arn, owner=owner, policy=policy, circumstances=circumstances
    )
    if topic is None or topic.source_id is None or not decision.is_allowed:
        return decision
    source = everything.find_id(topic.source_id)
    if source is None:
        return decision  # the source was deleted, and its shares go with it
    on_source = decisions.decide(
        caller,
        action,
        arn=source.arn,
        owner=source.account,
        policy=source.settings.policy,
        circumstances=circumstances,
    )
    is_denied = on_source.is_explicit and not on_source.is_allowed
    return on_source if is_denied else decision
