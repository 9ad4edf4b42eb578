"""The key ring of a node: the master keys that wrap (encrypt) and unwrap (decrypt) secrets.

A master key is 32 random bytes, from one of three sources: a file, the environment, or a key
management service (KMS) that unwraps the key. If no source is configured, a file is created in the
data folder. A master key wraps secrets and data keys, never messages. Older master keys are kept
until everything is wrapped by the current one. The layout of a wrapped secret:

    version 1 B │ master id 4 B │ nonce 12 B │ ciphertext and tag (AES-256-GCM)

Nonces are random: one key can wrap 2^32 values before a collision becomes likely enough to matter.

The KMS is called by running a command that the operator configures. The command runs only at the
start of a node, gets one JSON object on stdin, and writes one to stdout:

    {"operation": "wrap", "context": "<base64>", "plaintext": "<base64>"}    → {"ciphertext": ...}
    {"operation": "unwrap", "context": "<base64>", "ciphertext": "<base64>"} → {"plaintext": ...}

``context`` is the same in both operations; the KMS should authenticate it, if possible."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import os
import shlex
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.log.storage.files import DISK
from penstock.model.errors import Damaged, PenstockError, SetupError
from penstock.node.configuration.config import KeysConfig

COMMAND_SECONDS_MAX = 30.0
REPLY_BYTES_MAX = 65_536


class KmsFailed(PenstockError):
    pass


class CommandKms:
    """A key management service that is called by running a command. Calls block."""

    def __init__(self, command: str, *, seconds_max: float = COMMAND_SECONDS_MAX) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise KmsFailed(f"keys.kms_command cannot be parsed: {error}") from error
        if not self._command:
            raise KmsFailed("keys.kms_command is empty")
        self._seconds_max = seconds_max

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        return self._call("wrap", "plaintext", secret, "ciphertext", context)

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes:
        return self._call("unwrap", "ciphertext", wrapped, "plaintext", context)

    def _call(self, operation: str, given: str, value: bytes, wanted: str, context: bytes) -> bytes:
        request = {
            "operation": operation,
            "context": base64.b64encode(context).decode(),
            given: base64.b64encode(value).decode(),
        }
        reply = self._run(json.dumps(request).encode())
        try:
            found = json.loads(reply)[wanted]
            return base64.b64decode(found, validate=True)
        except (ValueError, KeyError, TypeError, binascii.Error):
            # The error does not show the reply, which may contain the key.
            raise KmsFailed(
                f"{self._command[0]}: the reply to {operation} is not a JSON object with {wanted!r}"
                " in base64"
            ) from None

    def _run(self, request: bytes) -> bytes:
        name = self._command[0]
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's command
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that its child processes can be killed too
            )
        except OSError as error:
            raise KmsFailed(f"{name} cannot be run: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Event()

        def give_up() -> None:
            overdue.set()
            _kill(process)

        timer = threading.Timer(self._seconds_max, give_up)
        timer.start()
        try:
            with process.stdin, process.stdout:
                # If it did not read the request, its reply and exit code are checked below.
                with suppress(BrokenPipeError):
                    process.stdin.write(request)  # fits into the pipe, so it does not block
                    process.stdin.close()
                reply = process.stdout.read(REPLY_BYTES_MAX + 1)
            if len(reply) > REPLY_BYTES_MAX:
                _kill(process)
            code = process.wait()
        finally:
            timer.cancel()
        if overdue.is_set():
            raise KmsFailed(f"{name} did not reply within {self._seconds_max:g} s")
        if len(reply) > REPLY_BYTES_MAX:
            raise KmsFailed(f"{name}: the reply is longer than {REPLY_BYTES_MAX} bytes")
        if code:
            raise KmsFailed(f"{name} ended with exit code {code}")
        return reply


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


MASTER_VARIABLE = "PENSTOCK_MASTER_KEY"
MASTER_NAME = "master.key"
KMS_NAME = "master.kms.json"
MASTER_BYTES = 32
FILE_BYTES_MAX = 4_096  # a key has 44 characters
OLD_MASTERS_MAX = 16

VERSION = 1
_ID_BYTES = 4
_NONCE_BYTES = 12
_HEAD_BYTES = 1 + _ID_BYTES
_WRAPPED_BYTES_MIN = _HEAD_BYTES + _NONCE_BYTES + 16
_KMS_CONTEXT = b"penstock master key"


class KeyRingUnusable(SetupError):
    """Raised if there is no usable master key. The error text never contains a key."""

    def __init__(self, why: str) -> None:
        super().__init__(why, what="the master key cannot be used")
        self.do = (
            "set the key that wrapped the secrets: keys.master_file, keys.old_master_files or"
            f" {MASTER_VARIABLE}; see docs/security.md"
        )


class MasterKeyRing:
    """Implements ``model.ports.KeyRing``."""

    def __init__(
        self,
        master: bytes,
        *,
        old: Sequence[bytes] = (),
        entropy: Callable[[int], bytes] = os.urandom,  # must be thread-safe
    ) -> None:
        assert all(len(key) == MASTER_BYTES for key in (master, *old))
        self._entropy = entropy
        self._id = _id_of(master)
        self._ciphers = {_id_of(key): AESGCM(key) for key in (*old, master)}
        self._cipher = self._ciphers[self._id]
        self._seed = hmac.digest(master, b"derive", "sha256")

    @property
    def master_id(self) -> str:
        return self._id.hex()

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        head = bytes((VERSION,)) + self._id
        nonce = self._entropy(_NONCE_BYTES)
        return head + nonce + self._cipher.encrypt(nonce, secret, head + context)

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes:
        if len(wrapped) < _WRAPPED_BYTES_MIN:
            raise _damaged(context, "the ciphertext is too short")
        if wrapped[0] != VERSION:
            raise _damaged(context, f"format version {wrapped[0]} is unknown; it must be {VERSION}")
        head = wrapped[:_HEAD_BYTES]
        cipher = self._ciphers.get(head[1:])
        if cipher is None:
            raise _damaged(context, f"the master key {head[1:].hex()} is not configured")
        nonce = wrapped[_HEAD_BYTES : _HEAD_BYTES + _NONCE_BYTES]
        try:
            return cipher.decrypt(nonce, wrapped[_HEAD_BYTES + _NONCE_BYTES :], head + context)
        except InvalidTag:
            raise _damaged(
                context, "the ciphertext is damaged, or was copied from another metadata entry"
            ) from None

    def derive(self, purpose: bytes) -> bytes:
        """Return 32 bytes derived from the master key and ``purpose``; the same after a restart."""
        return hmac.digest(self._seed, purpose, "sha256")

    def rewrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return a secret wrapped by the current master key instead of an older master key."""
        secret = self.unwrap(wrapped, context=context)  # also verifies it
        if wrapped[1:_HEAD_BYTES] == self._id:
            return wrapped
        return self.wrap(secret, context=context)

    def __repr__(self) -> str:
        return f"MasterKeyRing({self.master_id})"


def _id_of(master: bytes) -> bytes:
    return hashlib.sha256(master).digest()[:_ID_BYTES]


def _damaged(context: bytes, reason: str) -> Damaged:
    return Damaged(
        context.decode(errors="replace"), 0, f"a wrapped secret cannot be read: {reason}"
    )


async def start_key_ring(
    config: KeysConfig, folder: Path, *, env: Mapping[str, str]
) -> MasterKeyRing:
    """Open the configured key ring. This runs in a thread, because the KMS may be slow."""
    return await asyncio.to_thread(
        open_key_ring,
        folder,
        master_file=config.master_file,
        master_text=env.get(MASTER_VARIABLE, ""),
        old_master_files=[part.strip() for part in config.old_master_files.split(",") if part],
        kms=CommandKms(config.kms_command) if config.kms_command else None,
    )


def open_key_ring(
    folder: Path,
    *,
    master_file: str = "",
    master_text: str = "",
    old_master_files: Sequence[str] = (),
    kms: CommandKms | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> MasterKeyRing:
    """Open the key ring. If no source is given, the master key is in a file in ``folder``."""
    given = [bool(master_file), bool(master_text), kms is not None]
    if sum(given) > 1:
        raise KeyRingUnusable(
            f"set only one of keys.master_file, {MASTER_VARIABLE} and keys.kms_command"
        )
    if len(old_master_files) > OLD_MASTERS_MAX:
        raise KeyRingUnusable(f"keys.old_master_files names more than {OLD_MASTERS_MAX} files")
    old, own = [read_master(Path(path)) for path in old_master_files], folder / MASTER_NAME
    if master_text:
        master = _parse_master(master_text.encode(), MASTER_VARIABLE)
    elif kms is not None:
        master, *others = _from_kms(folder / KMS_NAME, kms, entropy)
        old += others
    elif master_file:
        master = read_master(Path(master_file))
    else:
        if not own.exists():
            _write_new(own, base64.b64encode(entropy(MASTER_BYTES)) + b"\n")
        return MasterKeyRing(read_master(own), old=old, entropy=entropy)
    if own.exists():
        # Created before another source was configured: it may still wrap secrets.
        old.append(read_master(own))
    return MasterKeyRing(master, old=old, entropy=entropy)


def read_master(path: Path) -> bytes:
    """Read a master key from a file, which other users must not be able to read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise KeyRingUnusable(f"the master key {path} is not a file")
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeyRingUnusable(f"the master key {path} cannot be read: {error.strerror}") from error
    # A group may read the file: service managers and orchestrators set this up.
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise KeyRingUnusable(
            f"other users can read or change the master key {path} (mode {stat.S_IMODE(mode):04o});"
            f" run: chmod 600 {path}"
        )
    return _parse_master(content, str(path))


def _parse_master(content: bytes, where: str) -> bytes:
    try:
        master = base64.b64decode(content.strip(), altchars=None, validate=True)
    except (binascii.Error, ValueError):
        master = b""
    if len(master) != MASTER_BYTES:
        raise KeyRingUnusable(
            f"the master key in {where} is not {MASTER_BYTES} bytes in base64; create one with"
            f" `openssl rand -base64 {MASTER_BYTES}`"
        )
    return master


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file atomically and durably, readable by this user only."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)  # left by an interrupted start
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        DISK.sync_folder(path.parent)
    except OSError as error:
        raise KeyRingUnusable(f"{path} cannot be written: {error.strerror}") from error


class _KmsFile(msgspec.Struct, frozen=True):
    """Master keys, wrapped by the KMS. The first one is the current master key."""

    wrapped: list[bytes]


def _from_kms(path: Path, kms: CommandKms, entropy: Callable[[int], bytes]) -> list[bytes]:
    if not path.exists():
        master = entropy(MASTER_BYTES)
        wrapped = kms.wrap(master, context=_KMS_CONTEXT)
        _write_new(path, msgspec.json.encode(_KmsFile([wrapped])) + b"\n")
        return [master]
    try:
        known = msgspec.json.decode(path.read_bytes(), type=_KmsFile).wrapped
    except OSError as error:
        raise KeyRingUnusable(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise KeyRingUnusable(f"{path} is damaged: {error}") from error
    if not 1 <= len(known) <= OLD_MASTERS_MAX:
        raise KeyRingUnusable(f"the number of master keys in {path} is invalid: {len(known)}")
    masters = [kms.unwrap(wrapped, context=_KMS_CONTEXT) for wrapped in known]
    if any(len(master) != MASTER_BYTES for master in masters):
        raise KeyRingUnusable("the key management service returned a key of the wrong length")
    return masters
