"""Entries of SNS address books: mobile apps (platform applications), their devices (platform
endpoints), and the settings for text messages of one tenant and region.

An endpoint is stored under a hash of its application and token, so that the store rejects a second
endpoint with the same token. Its id is random and stays the same if its token is replaced."""

import re
from hashlib import sha256
from typing import Final

import msgspec

from penstock.model import limits
from penstock.model.errors import InvalidRequest
from penstock.model.names import arn_partition, is_account, is_region

# In the order of the AWS documentation.
PLATFORMS: Final = (
    "ADM", "APNS", "APNS_SANDBOX", "APNS_VOIP", "APNS_VOIP_SANDBOX", "BAIDU", "GCM", "MACOS",
    "MACOS_SANDBOX", "MPNS", "WNS",
)  # fmt: skip
NAME_CHARS_MAX: Final = 256
SMS: Final = "sms"
_FIXED_BYTES: Final = 512  # fields of limited length, and the entry in indexes
_PLACE_CHARS: Final = 32

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_NUMBER = re.compile(r"\+?[0-9]{1,20}\Z")

Namespace = tuple[str, str]  # account and region


class PlatformApplication(msgspec.Struct, frozen=True, omit_defaults=True, tag="application"):
    account: str
    region: str
    platform: str
    name: str
    created_at_ms: int
    attributes: dict[str, str] = {}  # without credentials
    secrets: bytes = b""  # credentials as JSON, wrapped by the key ring

    @property
    def arn(self) -> str:
        return f"{_arn(self.account, self.region)}:app/{self.platform}/{self.name}"

    @property
    def place(self) -> str:
        return f"{self.account}/{self.region}/application/{self.platform}/{self.name}"

    @property
    def is_enabled(self) -> bool:
        return self.attributes.get("Enabled", "true") == "true"


class PlatformEndpoint(msgspec.Struct, frozen=True, omit_defaults=True, tag="endpoint"):
    id: str  # a random UUID
    account: str
    region: str
    platform: str
    application: str  # its name
    token: str  # by which the platform knows the device
    created_at_ms: int
    user_data: str = ""
    is_enabled: bool = True

    @property
    def arn(self) -> str:
        where = f"endpoint/{self.platform}/{self.application}/{self.id}"
        return f"{_arn(self.account, self.region)}:{where}"

    @property
    def place(self) -> str:
        described = "\0".join((self.platform, self.application, self.token))
        digest = sha256(described.encode("utf-8", "surrogatepass")).hexdigest()[:_PLACE_CHARS]
        return f"{self.account}/{self.region}/endpoint/{digest}"


class SandboxNumber(msgspec.Struct, frozen=True, omit_defaults=True):
    """A phone number whose owner proves by a code that it can be reached."""

    code: str = ""  # the password that was sent to the number; empty: verified
    sent_at_ms: int = 0
    tries: int = 0  # wrong passwords since


class SmsBook(msgspec.Struct, frozen=True, omit_defaults=True, tag="sms"):
    account: str
    region: str
    attributes: dict[str, str] = {}
    numbers: dict[str, SandboxNumber] = {}

    @property
    def place(self) -> str:
        return f"{self.account}/{self.region}/{SMS}"


BookEntry = PlatformApplication | PlatformEndpoint | SmsBook


def _arn(account: str, region: str) -> str:
    return f"arn:{arn_partition(region)}:sns:{region}:{account}"


def is_application_name(name: str) -> bool:
    return _NAME.match(name) is not None


def is_endpoint_id(text: str) -> bool:
    return _ID.match(text) is not None


def size_of(entry: BookEntry) -> int:
    """Return the approximate size in memory, which limits count."""
    if isinstance(entry, PlatformEndpoint):
        return _FIXED_BYTES + len(entry.token) + len(entry.user_data)
    texts = sum(len(name) + len(text) for name, text in entry.attributes.items())
    if isinstance(entry, PlatformApplication):
        return _FIXED_BYTES + texts + len(entry.secrets)
    return _FIXED_BYTES + texts + 100 * len(entry.numbers)


def check_entry(entry: BookEntry) -> None:
    """Raise InvalidRequest if an entry has invalid names or exceeds a limit."""
    if not (is_account(entry.account) and is_region(entry.region)):
        raise InvalidRequest("An entry of an address book has an invalid account or region.")
    if isinstance(entry, SmsBook):
        is_valid = len(entry.numbers) <= limits.SANDBOX_NUMBERS_MAX and all(
            _NUMBER.match(number) for number in entry.numbers
        )
    else:
        name = entry.name if isinstance(entry, PlatformApplication) else entry.application
        is_valid = entry.platform in PLATFORMS and is_application_name(name)
        if isinstance(entry, PlatformEndpoint):
            is_valid = is_valid and is_endpoint_id(entry.id) and bool(entry.token)
        is_valid = is_valid and 0 <= entry.created_at_ms < 2**63
    if not is_valid:
        raise InvalidRequest("An entry of an address book has an invalid name, id or number.")
    try:
        size = len(msgspec.json.encode(entry))
    except UnicodeEncodeError:
        raise InvalidRequest("A text of the address book is not valid Unicode.") from None
    if size > limits.BOOK_ENTRY_BYTES_MAX:
        raise InvalidRequest(
            f"An entry of an address book can have {limits.BOOK_ENTRY_BYTES_MAX:,} bytes as JSON,"
            f" not {size:,}. Use shorter attributes."
        )
