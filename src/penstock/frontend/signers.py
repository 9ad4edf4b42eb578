"""Access keys made ready: for each credential scope the day's signing key and whose it is.

Deriving a signing key takes four rounds of HMAC and opening the secret, so both are remembered, for
as long as nothing changes in the identities: a key that is disabled or whose user is gone is looked
at afresh with the next request.

A key that does not exist is given a signing key too, from a secret that nobody has, and is kept as
long as a real one would be: refusing it takes the work that refusing a bad signature takes. The
invented ones are kept apart, so that inventing many does not push out the real ones."""

from typing import Final

from penstock.model.identity import AccessKey, Caller, KeyStatus
from penstock.model.limits import MINUTE_MS
from penstock.model.ports import Identities
from penstock.wire.aws import sigv4
from penstock.wire.aws.faults import fault
from penstock.wire.aws.sigv4 import CredentialScope, SigningKey

SIGNERS_MAX: Final = 10_000  # of each sort; about 1 KiB each
_NO_SECRET: Final = b"0" * 40
_NOBODY: Final = Caller("", "")


class Signer:
    """Who signs with one key on one day. Nothing of it is ever shown: it has no ``repr``."""

    __slots__ = (
        "caller",
        "is_known",
        "is_suspended",
        "is_usable",
        "key",
        "noted_at_ms",
        "sender",
        "signing_key",
    )

    def __init__(
        self,
        caller: Caller,
        key: AccessKey | None,
        signing_key: SigningKey,
        *,
        is_known: bool,
        is_suspended: bool,
    ) -> None:
        self.caller = caller
        self.sender = f"{caller.account}:{caller.user}"  # as messages show it
        self.key = key
        self.signing_key = signing_key
        self.is_known = is_known  # and may be used
        self.is_suspended = is_suspended
        self.is_usable = is_known and not is_suspended
        self.noted_at_ms = 0

    def check(self, *, is_genuine: bool) -> None:
        """Raises what is wrong with whoever signed."""
        if not self.is_known:
            raise fault("InvalidClientTokenId")
        if not is_genuine:
            raise fault("SignatureDoesNotMatch")
        if self.is_suspended:
            raise fault("AccessDenied", f"The account {self.caller.account} is suspended.")


class Signers:
    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._epoch = identities.epoch
        self._known: dict[tuple[str, str, str, str], Signer] = {}
        self._unknown: dict[tuple[str, str, str, str], Signer] = {}

    def of(self, scope: CredentialScope) -> Signer:
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._known.clear()
            self._unknown.clear()
        place = (scope.access_key, scope.date, scope.region, scope.service)
        signer = self._known.get(place) or self._unknown.get(place)
        if signer is None:
            signer = self._made(scope)
            kept = self._unknown if signer.key is None else self._known
            if len(kept) >= SIGNERS_MAX:
                kept.clear()
            kept[place] = signer
        return signer

    def note_used(self, signer: Signer, *, now_ms: int) -> None:
        """Once a minute is as fine as it is written down."""
        if now_ms - signer.noted_at_ms >= MINUTE_MS and signer.key is not None:
            signer.noted_at_ms = now_ms
            self._identities.note_used(signer.key, now_ms=now_ms)

    def _made(self, scope: CredentialScope) -> Signer:
        identities = self._identities
        key = identities.key(scope.access_key)
        if key is None:
            invented = sigv4.signing_key(_NO_SECRET, scope)
            return Signer(_NOBODY, None, invented, is_known=False, is_suspended=False)
        tenant = identities.tenant(key.account)
        user = identities.user(key.account, key.user)
        caller = Caller(
            account=key.account,
            user=key.user,
            key_id=key.key_id,
            is_operator=user is not None and user.is_operator,
        )
        is_known = user is not None and tenant is not None and key.status is KeyStatus.ACTIVE
        return Signer(
            caller,
            key,
            sigv4.signing_key(identities.secret(key), scope),
            is_known=is_known,
            is_suspended=tenant is not None and tenant.is_suspended,
        )
