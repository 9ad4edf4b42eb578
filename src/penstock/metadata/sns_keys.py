"""Keys that sign the messages of SNS topics, with self-signed certificates. All nodes use the same.

    /snskeys/{number}    the certificate, and the private key wrapped by the key ring

Numbers begin at 1. The first key is created when it is needed. A year later a new key gets the next
number; if two nodes create it at the same moment, the store rejects one of them. The new key is
used after ten minutes, when every node knows its certificate. Old certificates are kept for 400
days, so that receivers can still verify old messages.

A certificate's id is a hash of the certificate, so an id always means the same certificate."""

import asyncio
import datetime
import hashlib
import logging
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.metadata.cache import TRIES_MAX, Cache, WatchGroup, abandon
from penstock.metadata.security.identities import Resealed, reseal
from penstock.metadata.store import Store
from penstock.model.errors import Damaged, Overloaded, Throttled, VersionConflict
from penstock.model.levels import LEVEL_MAX, PUSH
from penstock.model.ports import Clock, KeyRing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

SNS_KEYS_PREFIX: Final = "/snskeys/"
SNS_KEYS_MAX: Final = 100  # three are enough, unless master keys are lost
ENTRY_BYTES_MAX: Final = 16 * 1_024  # about 4 KB are used

DAY_MS: Final = 24 * 3_600_000
RENEW_MS: Final = 365 * DAY_MS
KEPT_MS: Final = 400 * DAY_MS  # time for which a certificate is kept after its successor is created
KNOWN_MS: Final = 600_000  # time after which every node and cache knows a new certificate

_KEY = re.compile(rf"{SNS_KEYS_PREFIX}[1-9][0-9]{{0,8}}\Z")
_RSA_BITS: Final = 2_048  # what SNS uses and its verifiers expect
_SERIAL_BYTES: Final = 16
_ID_CHARS: Final = 32

log = logging.getLogger(__name__)


class SnsKeyEntry(msgspec.Struct, frozen=True):
    certificate: str  # PEM
    wrapped: bytes  # the private key (PKCS 8, DER), wrapped by the key ring
    created_at_ms: int


_decode = msgspec.json.Decoder(SnsKeyEntry).decode


def decode_sns_key(value: bytes) -> SnsKeyEntry:
    entry = _decode(value)
    if len(value) > ENTRY_BYTES_MAX or entry.created_at_ms < 0:
        raise ValueError(f"a signing key has more than {ENTRY_BYTES_MAX} bytes or a negative time")
    return entry


def sns_key_key(number: int) -> str:
    return f"{SNS_KEYS_PREFIX}{number}"


def is_sns_key_key(key: str) -> bool:
    return _KEY.match(key) is not None


def _number(key: str) -> int:
    return int(key.removeprefix(SNS_KEYS_PREFIX))


def certificate_id(certificate: str) -> str:
    return hashlib.sha256(certificate.encode()).hexdigest()[:_ID_CHARS]


class SigningKey:
    __slots__ = ("certificate_id", "private")

    def __init__(self, certificate: str, private: "RSAPrivateKey") -> None:
        self.certificate_id = certificate_id(certificate)
        self.private = private

    def __repr__(self) -> str:
        return f"SigningKey({self.certificate_id})"


def sign(key: SigningKey, version: str, text: bytes) -> bytes:
    """Sign a text with SHA-1 (version 1) or SHA-256 (version 2). Takes about 0.3 ms."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    algorithm = hashes.SHA256() if version == "2" else hashes.SHA1()  # noqa: S303 - as SNS has it
    return key.private.sign(text, padding.PKCS1v15(), algorithm)


def _generate(now_ms: int, serial: bytes) -> tuple[str, bytes]:
    """Return a new certificate and its private key. This takes 0.05 to 0.6 s of CPU time."""
    # Imported here, because this takes 0.06 s and commands import this module too.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65_537, key_size=_RSA_BITS)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Penstock SNS")])
    begin = datetime.datetime.fromtimestamp((now_ms - DAY_MS) // 1_000, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(int.from_bytes(serial) >> 1)  # must have less than 160 bits
        .not_valid_before(begin)  # a day earlier: clocks of receivers may be slow
        .not_valid_after(begin + datetime.timedelta(milliseconds=RENEW_MS + KEPT_MS + 2 * DAY_MS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    der = private.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), der


def _load(der: bytes) -> "RSAPrivateKey":
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    # The key ring has authenticated the key: a validation would take 0.1 s of CPU time.
    private = load_der_private_key(der, None, unsafe_skip_rsa_key_validation=True)
    assert isinstance(private, RSAPrivateKey)
    return private


class SnsKeys(WatchGroup):
    """The signing keys of a cluster. Only ``ready`` and ``sweep`` may create a key."""

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        level: Callable[[], int] = lambda: LEVEL_MAX,  # the feature level in force
    ) -> None:
        self._ring = ring
        self._clock = clock
        self._entropy = entropy
        self._level = level
        self._entries = Cache(
            store, SNS_KEYS_PREFIX, decode=_decode, on_change=self._on_entry_change
        )
        super().__init__(self._entries)
        self._by_number: dict[int, SnsKeyEntry] = {}
        self._certificates: dict[str, str] = {}  # by id
        self._ready: dict[int, SigningKey] = {}  # by number: the keys that can be unwrapped
        self._creating: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        task, self._creating = self._creating, None
        await abandon(task)
        await super().stop()

    def current(self) -> SigningKey | None:
        """Return the key that signs messages now, or None if ``ready`` must be called first."""
        if not self._ready:
            return None
        return self._ready[max(self._known() or (min(self._ready),))]

    async def ready(self) -> SigningKey:
        """Return the key that signs messages now. Creates the first key, or one in place of keys
        that cannot be unwrapped."""
        for _ in range(TRIES_MAX):
            key = self.current()
            if key is not None:
                return key
            # The creation must not be cancelled with the request that started it.
            await asyncio.shield(self._begin())
        raise Throttled("No key to sign messages can be created now; retry.")

    def certificate(self, wanted_id: str) -> str | None:
        """Return a certificate in PEM format, by its id."""
        return self._certificates.get(wanted_id)

    async def sweep(self) -> int:
        """Create a new key if the newest one is a year old, and delete old certificates. Returns
        the number of certificates deleted."""
        now_ms = self._clock.wall_ms()
        created = sorted((number, one.created_at_ms) for number, one in self._by_number.items())
        if created and now_ms - created[-1][1] >= RENEW_MS:
            await asyncio.shield(self._begin())
        gone = 0
        for (number, _), (_, successor_at_ms) in pairwise(created):
            if now_ms - successor_at_ms >= KEPT_MS:
                await self._entries.update(
                    sns_key_key(number), lambda _entry: None, what="The signing key"
                )
                gone += 1
        return gone

    async def reseal(self, rewrap: Callable[[bytes, bytes], bytes]) -> Resealed:
        """Encrypt every private key with the current master key."""

        def change(at: str, entry: SnsKeyEntry) -> SnsKeyEntry:
            return msgspec.structs.replace(entry, wrapped=rewrap(entry.wrapped, at.encode()))

        return await reseal(self._entries, [sns_key_key(one) for one in self._by_number], change)

    def _known(self) -> list[int]:
        """Return the usable keys whose certificates every node knows."""
        before_ms = self._clock.wall_ms() - KNOWN_MS
        return [one for one in self._ready if self._by_number[one].created_at_ms <= before_ms]

    def _begin(self) -> "asyncio.Task[None]":
        task = self._creating
        if task is None:
            task = self._creating = asyncio.create_task(self._create(), name="create a signing key")
            task.add_done_callback(self._created)
        return task

    def _created(self, task: "asyncio.Task[None]") -> None:
        self._creating = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("creating a signing key failed", extra={"reason": str(error)})

    async def _create(self) -> None:
        if self._level() < PUSH:
            raise Overloaded(
                f"Signed messages need feature level {PUSH}: upgrade all nodes, then run penstock"
                " cluster upgrade."
            )
        number = max(self._by_number, default=0) + 1
        at, now_ms = sns_key_key(number), self._clock.wall_ms()
        generate = partial(_generate, now_ms, self._entropy(_SERIAL_BYTES))
        certificate, der = await asyncio.to_thread(generate)
        entry = SnsKeyEntry(certificate, self._ring.wrap(der, context=at.encode()), now_ms)
        try:
            await self._entries.write(at, entry, if_version=0)
            log.info("signing key created", extra={"certificate": certificate_id(certificate)})
        except VersionConflict:  # another node was faster: use its key
            await self._entries.refresh(at)

    def _on_entry_change(
        self, key: str, before: SnsKeyEntry | None, after: SnsKeyEntry | None
    ) -> None:
        number = _number(key)
        if before is not None:
            self._certificates.pop(certificate_id(before.certificate), None)
            del self._by_number[number]
            self._ready.pop(number, None)
        if after is None:
            return
        self._by_number[number] = after
        self._certificates[certificate_id(after.certificate)] = after.certificate
        try:
            der = self._ring.unwrap(after.wrapped, context=key.encode())
        except Damaged as error:  # its certificate still verifies old messages
            log.error("signing key cannot be unwrapped", extra={"reason": str(error)})
            return
        self._ready[number] = SigningKey(after.certificate, _load(der))
