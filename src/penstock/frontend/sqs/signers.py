"""Access keys prepared for verification: for each credential scope the signing key and its owner.

Deriving a signing key takes four rounds of HMAC and decrypting the secret, so both are cached until
the identities change.

An unknown access key gets a signing key as well, made from a constant, so that rejecting it takes
as long as rejecting a wrong signature. Unknown keys have a cache of their own: a flood of them does
not evict real ones."""

from typing import Final

from penstock.model.identity import AccessKey, Caller, KeyStatus
from penstock.model.limits import MINUTE_MS
from penstock.model.ports import Identities
from penstock.wire.aws import sigv4
from penstock.wire.aws.faults import fault
from penstock.wire.aws.sigv4 import CredentialScope, SigningKey

SIGNERS_MAX: Final = 10_000  # of each cache; about 1 KiB each
_NO_SECRET: Final = b"0" * 40
_UNKNOWN: Final = Caller("", "")


class Signer:
    """The owner of one key, with the signing key of one day. It has no ``repr``, so that it is
    never shown."""

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
        self.sender = f"{caller.account}:{caller.user}"  # SenderId of messages
        self.key = key
        self.signing_key = signing_key
        self.is_known = is_known  # exists and is active
        self.is_suspended = is_suspended
        self.is_usable = is_known and not is_suspended
        self.noted_at_ms = 0

    def check(self, *, is_genuine: bool) -> None:
        """Raise the fault of a signer that may not call."""
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
        key = (scope.access_key, scope.date, scope.region, scope.service)
        signer = self._known.get(key) or self._unknown.get(key)
        if signer is None:
            signer = self._make(scope)
            cache = self._unknown if signer.key is None else self._known
            if len(cache) >= SIGNERS_MAX:
                cache.clear()
            cache[key] = signer
        return signer

    def note_used(self, signer: Signer, *, now_ms: int) -> None:
        """Record the last use of a key, at most once a minute."""
        if now_ms - signer.noted_at_ms >= MINUTE_MS and signer.key is not None:
            signer.noted_at_ms = now_ms
            self._identities.note_used(signer.key, now_ms=now_ms)

    def _make(self, scope: CredentialScope) -> Signer:
        identities = self._identities
        key = identities.key(scope.access_key)
        if key is None:
            signing_key = sigv4.signing_key(_NO_SECRET, scope)
            return Signer(_UNKNOWN, None, signing_key, is_known=False, is_suspended=False)
        tenant = identities.tenant(key.account)
        user = identities.user(key.account, key.user)
        is_operator = user is not None and user.is_operator
        return Signer(
            Caller(key.account, key.user, key.key_id, is_operator=is_operator),
            key,
            sigv4.signing_key(identities.secret(key), scope),
            is_known=user is not None and tenant is not None and key.status is KeyStatus.ACTIVE,
            is_suspended=tenant is not None and tenant.is_suspended,
        )
