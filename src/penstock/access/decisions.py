"""Access decisions for requests of all protocols, made from the policies and cached.

Any change of users or tenants clears the cache. A decision that depends on the client's address or
transport is cached only for requests with the same address and transport, and a decision that
depends on the time is not cached. An invalid stored policy denies everything, because its meaning
is unknown; the owner of a queue or topic can still replace its policy."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.access import evaluation
from penstock.access.conditions import Asks, Facts, MalformedPolicy
from penstock.access.evaluation import Compiled, Decision, Kind
from penstock.model.identity import Caller, Circumstances
from penstock.model.ports import Catalog, Identities
from penstock.model.topic import Topic

log = logging.getLogger("penstock.frontend")

DECISIONS_MAX: Final = 20_000  # about 300 bytes each
USERS_MAX: Final = 10_000  # users whose compiled policies are cached

# Larger policies of a user and a resource are evaluated in a thread.
AT_ONCE_CHARS_MAX: Final = 16_384

TRUSTED: Final = Decision(is_allowed=True)

# Account and user of the caller, action, ARN of the resource, its account and its policy.
Question = tuple[str, str, str, str, str, str | None]
CircumstancesOf = Callable[[], Circumstances]  # called only if a condition needs them


def _denial(reason: str) -> Compiled:
    return evaluation.compile_policy(
        f'{{"Statement":{{"Sid":"{reason}","Effect":"Deny","Action":"*","Resource":"*"}}}}',
        Kind.IDENTITY,
    )


_INVALID: Final = _denial("unreadable policy")
# The user of an open connection may have been deleted.
_DELETED: Final = _denial("no such user")
_SUSPENDED: Final = _denial("suspended account")
_INVALID_RESOURCE: Final = evaluation.compile_policy(
    '{"Statement":{"Sid":"unreadable policy","Effect":"Deny","Principal":"*","Resource":"*",'
    '"NotAction":["sqs:GetQueueAttributes","sqs:SetQueueAttributes","sqs:DeleteQueue",'
    '"sns:GetTopicAttributes","sns:SetTopicAttributes","sns:DeleteTopic"]}}',
    Kind.RESOURCE,
)


class Postponed(Exception):
    """Raised if a decision would take too long. The caller runs ``evaluate`` in a thread, passes
    the result to ``Decisions.keep``, and asks for the decision again."""

    def __init__(
        self, question: Question, epoch: int, evaluate: Callable[[], tuple[Asks, Decision]]
    ) -> None:
        super().__init__("the policies are large")
        self.question = question
        self.epoch = epoch
        self.evaluate = evaluate


class Decisions:
    def __init__(self, identities: Identities, *, postpones: bool = False) -> None:
        self._identities = identities
        self._postpones = postpones
        self._epoch = identities.epoch
        self._decisions: dict[tuple[object, ...], Decision] = {}
        # Questions with large policies that were evaluated in a thread, but cannot be cached.
        self._compiled: set[Question] = set()
        self._policies: dict[tuple[str, str], Sequence[Compiled]] = {}  # by account and user

    def decide(
        self,
        caller: Caller,
        action: str,
        *,
        arn: str,
        owner: str,
        policy: str | None,
        circumstances: CircumstancesOf,
    ) -> Decision:
        """Decide whether ``caller`` may do an action, such as ``sqs:SendMessage``, on the resource
        ``arn``, which belongs to the account ``owner`` and has the policy text ``policy``."""
        if caller.is_trusted:
            return TRUSTED
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._decisions.clear()
            self._policies.clear()
            self._compiled.clear()
        question = (caller.account, caller.user, action, arn, owner, policy)
        return self._decisions.get(question) or self._evaluate(caller, question, circumstances)

    def decide_on_queue(
        self,
        everything: Catalog,
        caller: Caller,
        action: str,
        *,
        arn: str,
        owner: str,
        topic: Topic | None,
        circumstances: CircumstancesOf,
    ) -> Decision:
        """Decide whether an action on the queue ``arn`` is allowed. ``topic`` is None if the queue
        does not exist. If the queue is a share (a second view of a source queue), a Deny in the
        policy of the source queue applies too."""
        policy = None if topic is None else topic.settings.policy
        decision = self.decide(
            caller, action, arn=arn, owner=owner, policy=policy, circumstances=circumstances
        )
        if topic is None or topic.source_id is None or not decision.is_allowed:
            return decision
        source = everything.find_id(topic.source_id)
        if source is None:
            return decision  # the source was deleted, and its shares will be
        on_source = self.decide(
            caller,
            action,
            arn=source.arn,
            owner=source.account,
            policy=source.settings.policy,
            circumstances=circumstances,
        )
        is_denied = on_source.is_explicit and not on_source.is_allowed
        return on_source if is_denied else decision

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Return a context in which decisions never raise Postponed. Do not await in it."""
        before, self._postpones = self._postpones, False
        try:
            yield
        finally:
            self._postpones = before

    def keep(self, postponed: Postponed, asks: Asks, decision: Decision) -> None:
        """Cache a decision that was made in a thread, unless users or policies have changed."""
        if postponed.epoch != self._identities.epoch or postponed.epoch != self._epoch:
            return
        if not asks:
            self._remember(postponed.question, decision)
            return
        if len(self._compiled) >= DECISIONS_MAX:
            self._compiled.clear()
        self._compiled.add(postponed.question)

    def is_cached(
        self, caller: Caller, action: str, *, arn: str, owner: str, policy: str | None
    ) -> bool:
        """Return whether a decision that applies to every address, transport and time is cached."""
        return (caller.account, caller.user, action, arn, owner, policy) in self._decisions

    def grants_anything(
        self,
        caller: Caller,
        *,
        arn: str,
        owner: str,
        policy: str | None,
        circumstances: CircumstancesOf,
    ) -> bool:
        resource = compile_resource(policy, arn=arn)
        return resource is not None and evaluation.grants_anything(
            resource, Facts(caller, circumstances(), owner), arn
        )

    def _evaluate(
        self, caller: Caller, question: Question, circumstances: CircumstancesOf
    ) -> Decision:
        if self._postpones and question not in self._compiled:
            self._check_size(caller, question, circumstances)
        identity = self._policies_of(caller)
        resource = compile_resource(question[5], arn=question[3])
        asks = _asks(identity, resource)
        key: tuple[object, ...] = question
        found = Circumstances()
        if asks:
            found = circumstances()
            address = found.source_ip if asks & Asks.ADDRESS else None
            key = (*key, address, found.is_tls if asks & Asks.TRANSPORT else None)
            cached = None if asks & Asks.TIME else self._decisions.get(key)
            if cached is not None:
                return cached
        _, _, action, arn, owner, _ = question
        decision = evaluation.decide(identity, resource, Facts(caller, found, owner), action, arn)
        if not asks & Asks.TIME:
            self._remember(key, decision)
        return decision

    def _remember(self, key: tuple[object, ...], decision: Decision) -> None:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[key] = decision

    def _check_size(
        self, caller: Caller, question: Question, circumstances: CircumstancesOf
    ) -> None:
        tenant = self._identities.tenant(caller.account)
        user = self._identities.user(caller.account, caller.user)
        if tenant is None or user is None or tenant.is_suspended:
            return  # the request is denied whatever the policies are
        total = len(question[-1] or "") + sum(map(len, user.policies.values()))
        if total <= AT_ONCE_CHARS_MAX:
            return
        _, _, action, arn, owner, _ = question
        texts, facts = tuple(user.policies.items()), Facts(caller, circumstances(), owner)

        def evaluate() -> tuple[Asks, Decision]:
            identity = [_compile_identity(name, text, caller) for name, text in texts]
            resource = compile_resource(question[5], arn=question[3])
            decision = evaluation.decide(identity, resource, facts, action, arn)
            return _asks(identity, resource), decision

        raise Postponed(question, self._epoch, evaluate)

    def _policies_of(self, caller: Caller) -> Sequence[Compiled]:
        key = (caller.account, caller.user)
        found = self._policies.get(key)
        if found is None:
            tenant = self._identities.tenant(caller.account)
            user = self._identities.user(caller.account, caller.user)
            if tenant is None or user is None:
                found = (_DELETED,)
            elif tenant.is_suspended:
                found = (_SUSPENDED,)
            else:
                texts = user.policies.items()
                found = tuple(_compile_identity(name, text, caller) for name, text in texts)
            if len(self._policies) >= USERS_MAX:
                self._policies.clear()
            self._policies[key] = found
        return found


def _asks(identity: Sequence[Compiled], resource: Compiled | None) -> Asks:
    asks = Asks.NOTHING if resource is None else resource.asks
    for compiled in identity:
        asks |= compiled.asks
    return asks


def _compile_identity(name: str, text: str, caller: Caller) -> Compiled:
    try:
        return evaluation.compile_policy(text, Kind.IDENTITY)
    except MalformedPolicy as error:
        log.error(
            "user policy is invalid: denying all requests of this user",
            extra={"user": caller.arn, "policy": name, "reason": str(error)},
        )
        return _INVALID


def compile_resource(text: str | None, *, arn: str) -> Compiled | None:
    """Compile the policy of the resource ``arn``. An invalid policy denies nearly everything."""
    if text is None:
        return None
    try:
        return evaluation.compile_policy(text, Kind.RESOURCE)
    except MalformedPolicy as error:
        log.error(
            "resource policy is invalid: denying all requests except those that replace it",
            extra={"arn": arn, "reason": str(error)},
        )
        return _INVALID_RESOURCE
