"""May this caller do that? The policies in force, weighed once and remembered.

Whatever protocol a request came in by, its stages and actions ask here with the name of an action
and the ARN of a resource. Answers are void as soon as anything changes in the identities; a
resource's policy is part of the question, so that a new text is a new question. Where a policy
looks at the caller's address or at TLS, an answer counts only for requests that are alike in it;
where it looks at the clock, nothing is remembered.

A stored policy that cannot be read denies: what it meant to forbid is not known. The owner of a
queue can still replace its policy."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.model.identity import Caller, Circumstances
from penstock.model.ports import Identities
from penstock.wire.aws import access
from penstock.wire.aws.access import Asks, Compiled, Decision, Kind, MalformedPolicy

log = logging.getLogger("penstock.frontend")

DECISIONS_MAX: Final = 20_000  # about 300 bytes each
STANDINGS_MAX: Final = 10_000

# Policies of a caller and a resource that are compiled and weighed at once: a few milliseconds.
AT_ONCE_CHARS_MAX: Final = 16_384

TRUSTED: Final = Decision(is_allowed=True)
Question = tuple[str, str, str, str, str, str | None]


def _denial(reason: str) -> Compiled:
    return access.compile_policy(
        f'{{"Statement":{{"Sid":"{reason}","Effect":"Deny","Action":"*","Resource":"*"}}}}',
        Kind.IDENTITY,
    )


_UNREADABLE: Final = _denial("unreadable policy")
# A connection may outlive its user: no resource's policy helps one that is gone.
_GONE: Final = _denial("no such user")
_SUSPENDED: Final = _denial("suspended account")
_DENIES_USE: Final = access.compile_policy(
    '{"Statement":{"Sid":"unreadable policy","Effect":"Deny","Principal":"*","Resource":"*",'
    '"NotAction":["sqs:GetQueueAttributes","sqs:SetQueueAttributes","sqs:DeleteQueue"]}}',
    Kind.RESOURCE,
)


def _asks(identity: Sequence[Compiled], resource: Compiled | None) -> Asks:
    asks = Asks.NOTHING if resource is None else resource.asks
    for compiled in identity:
        asks |= compiled.asks
    return asks


class Postponed(Exception):
    """Raised instead of a decision that takes long: ``weigh`` may be called in a thread, and
    ``Decisions.keep`` takes its result."""

    def __init__(
        self, question: Question, epoch: int, weigh: Callable[[], tuple[Asks, Decision]]
    ) -> None:
        super().__init__("the policies are large")
        self.question = question
        self.epoch = epoch
        self.weigh = weigh


class Decisions:
    def __init__(self, identities: Identities, *, postpones: bool = False) -> None:
        """``postpones``: decisions on large policies raise Postponed, except in ``at_once``."""
        self._identities = identities
        self._postpones = postpones
        self._epoch = identities.epoch
        self._decisions: dict[tuple[object, ...], Decision] = {}
        # Questions that depend on the circumstances, and whose large policies are compiled:
        self._compiled: set[tuple[object, ...]] = set()
        self._standings: dict[tuple[str, str], tuple[Compiled, ...]] = {}  # by account and user

    def decide(
        self,
        caller: Caller,
        action: str,
        *,
        arn: str,
        owner: str,
        policy: str | None,
        circumstances: Callable[[], Circumstances],
    ) -> Decision:
        """``action`` as in ``sqs:SendMessage``; ``owner`` is the account that ``arn`` belongs to,
        ``policy`` the text that the resource carries. ``circumstances`` is called only when a
        condition needs them."""
        if caller.is_trusted:
            return TRUSTED
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._decisions.clear()
            self._standings.clear()
            self._compiled.clear()
        question = (caller.account, caller.user, action, arn, owner, policy)
        decision = self._decisions.get(question)
        if decision is None:
            decision = self._weigh(caller, action, arn, owner, policy, circumstances)
        return decision

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Nothing is postponed in this block, which does not wait."""
        before, self._postpones = self._postpones, False
        try:
            yield
        finally:
            self._postpones = before

    def keep(self, postponed: Postponed, asks: Asks, decision: Decision) -> None:
        """Remember a decision that was made in a thread, unless something has changed since."""
        if postponed.epoch != self._identities.epoch or postponed.epoch != self._epoch:
            return
        if not asks:
            self._remember(postponed.question, decision)
            return
        if len(self._compiled) >= DECISIONS_MAX:
            self._compiled.clear()
        self._compiled.add(postponed.question)

    def is_kept(
        self, caller: Caller, action: str, *, arn: str, owner: str, policy: str | None
    ) -> bool:
        """Whether what was just decided is good for every such request, whatever the circumstances
        it comes in, until something changes."""
        return (caller.account, caller.user, action, arn, owner, policy) in self._decisions

    def is_known_to(
        self,
        caller: Caller,
        *,
        arn: str,
        owner: str,
        policy: str | None,
        circumstances: Callable[[], Circumstances],
    ) -> bool:
        """Whether a resource's policy gives the caller any right, so that it may be told that the
        resource is there."""
        if policy is None:
            return False
        return access.grants_anything(
            self._resource(policy, arn),
            caller=caller,
            owner_account=owner,
            resource_arn=arn,
            circumstances=circumstances(),
        )

    def _weigh(
        self,
        caller: Caller,
        action: str,
        arn: str,
        owner: str,
        policy: str | None,
        circumstances: Callable[[], Circumstances],
    ) -> Decision:
        place: tuple[object, ...] = (caller.account, caller.user, action, arn, owner, policy)
        if self._postpones and place not in self._compiled:
            self._check_size(caller, action, arn, owner, policy, circumstances)
        identity = self._standing(caller)
        resource = None if policy is None else self._resource(policy, arn)
        asks = _asks(identity, resource)
        found = Circumstances()
        if asks:
            found = circumstances()
            address = found.source_ip if asks & Asks.ADDRESS else None
            place = (*place, address, found.is_tls if asks & Asks.TRANSPORT else None)
            kept = None if asks & Asks.TIME else self._decisions.get(place)
            if kept is not None:
                return kept
        decision = access.decide(
            identity,
            resource,
            caller=caller,
            owner_account=owner,
            action=action,
            resource_arn=arn,
            circumstances=found,
        )
        if not asks & Asks.TIME:
            self._remember(place, decision)
        return decision

    def _remember(self, place: tuple[object, ...], decision: Decision) -> None:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[place] = decision

    def _check_size(
        self,
        caller: Caller,
        action: str,
        arn: str,
        owner: str,
        policy: str | None,
        circumstances: Callable[[], Circumstances],
    ) -> None:
        """Raise Postponed if the policies are large."""
        tenant = self._identities.tenant(caller.account)
        user = self._identities.user(caller.account, caller.user)
        if tenant is None or user is None or tenant.is_suspended:
            return  # the caller's own policies do not matter
        total = len(policy or "") + sum(map(len, user.policies.values()))
        if total <= AT_ONCE_CHARS_MAX:
            return
        texts, found = tuple(user.policies.items()), circumstances()

        def weigh() -> tuple[Asks, Decision]:
            identity = [self._identity(name, text, caller) for name, text in texts]
            resource = None if policy is None else self._resource(policy, arn)
            decision = access.decide(
                identity,
                resource,
                caller=caller,
                owner_account=owner,
                action=action,
                resource_arn=arn,
                circumstances=found,
            )
            return _asks(identity, resource), decision

        question = (caller.account, caller.user, action, arn, owner, policy)
        raise Postponed(question, self._epoch, weigh)

    def _standing(self, caller: Caller) -> Sequence[Compiled]:
        place = (caller.account, caller.user)
        standing = self._standings.get(place)
        if standing is None:
            standing = self._read_standing(caller)
            if len(self._standings) >= STANDINGS_MAX:
                self._standings.clear()
            self._standings[place] = standing
        return standing

    def _read_standing(self, caller: Caller) -> tuple[Compiled, ...]:
        tenant = self._identities.tenant(caller.account)
        user = self._identities.user(caller.account, caller.user)
        if tenant is None or user is None:
            return (_GONE,)
        if tenant.is_suspended:
            return (_SUSPENDED,)
        return tuple(self._identity(name, text, caller) for name, text in user.policies.items())

    def _identity(self, name: str, text: str, caller: Caller) -> Compiled:
        try:
            return access.compile_policy(text, Kind.IDENTITY)
        except MalformedPolicy as error:
            log.error(
                "policy of a user cannot be read, so it denies everything",
                extra={"user": caller.arn, "policy": name, "reason": str(error)},
            )
            return _UNREADABLE

    def _resource(self, text: str, arn: str) -> Compiled:
        try:
            return access.compile_policy(text, Kind.RESOURCE)
        except MalformedPolicy as error:
            log.error(
                "policy of a resource cannot be read, so it denies its use",
                extra={"arn": arn, "reason": str(error)},
            )
            return _DENIES_USE
