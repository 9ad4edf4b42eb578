"""Decides whether a service of this server may act on a resource, such as SNS on a queue.

A service has no policies of its own: the policy of the resource must allow the action, in the
account of the service's resource too, as in AWS. The fan-out of an SNS topic asks for each copy, so
the decision on each topic and queue is cached until the policy of the queue changes."""

from typing import Final

import msgspec

from penstock.access import evaluation
from penstock.access.conditions import Asks, Facts
from penstock.access.decisions import compile_resource
from penstock.model.identity import Caller, Circumstances
from penstock.model.limits import SUBSCRIPTIONS_MAX
from penstock.model.topic import Topic

SNS: Final = "sns.amazonaws.com"
SEND: Final = "sqs:SendMessage"
# A decision that depends on the time is valid for so long, because evaluating a large policy for
# each of many messages would use up the processor.
TIMED_MS: Final = 1_000
DECISIONS_MAX: Final = 2 * SUBSCRIPTIONS_MAX  # a queue and a dead-letter queue each


class _Known(msgspec.Struct, frozen=True, gc=False):
    policy: str | None
    is_allowed: bool
    until_ms: int | None  # None: does not depend on the time


class ServiceDecisions:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}  # by topic id and queue id

    def may_send(self, topic: Topic, queue: Topic, *, now_ms: int) -> bool:
        """Return whether the policy of a queue allows SNS to send messages of an SNS topic."""
        key, policy = (topic.topic_id, queue.topic_id), queue.settings.policy
        known = self._known.get(key)
        if known is None or known.policy != policy or now_ms >= (known.until_ms or now_ms + 1):
            if len(self._known) >= DECISIONS_MAX:
                self._known.clear()
            known = self._known[key] = _evaluate(topic, queue, now_ms=now_ms)
        return known.is_allowed


def _evaluate(topic: Topic, queue: Topic, *, now_ms: int) -> _Known:
    policy = queue.settings.policy
    resource = compile_resource(policy, arn=queue.arn)
    if resource is None:
        return _Known(policy, is_allowed=False, until_ms=None)
    caller = Caller(topic.account, "", service=SNS, source_arn=topic.sns_arn or "")
    # Copies never come from the network of a client, so they have no address, and they satisfy
    # policies that demand TLS.
    facts = Facts(caller, Circumstances(is_tls=True, now_ms=now_ms), queue.account)
    decision = evaluation.decide((), resource, facts, SEND, queue.arn)
    until_ms = now_ms + TIMED_MS if resource.asks & Asks.TIME else None
    return _Known(policy, decision.is_allowed, until_ms)
