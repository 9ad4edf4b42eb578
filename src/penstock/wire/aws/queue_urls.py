"""Parses queue URLs in every form that clients send, and builds the URLs for replies.

The host is not checked, because a network may give a server any name; only a region is read from
it. The caller decides which account and region apply if a URL does not contain them."""

import re
from functools import lru_cache

import msgspec

from penstock.model.names import is_account, is_queue_name, is_region, is_share_name
from penstock.wire.aws.faults import fault

_URL_CHARS_MAX = 1_024
_CACHED_MAX = 4_096  # URLs; a producer sends the same URL with every message

_URL = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*://(?P<host>[^/?#]+))?"
    r"/(?:queue/(?P<region>[^/?#]+)/)?"
    r"(?P<account>[^/?#]+)/(?P<name>[^/?#]+)/?\Z"
)
_NO_ACCOUNT = "queue"  # ElasticMQ's URLs were http://host/queue/<name> for years
# Any word is a region in a signature or in /queue/<region>/…, but a host must have the form of an
# AWS host: the second label of sqs.example.com is not a region.
_HOST_REGION = re.compile(
    r"(?:(?:sqs|sns)\.(?P<modern>[a-z]+(?:-[a-z]+)+-[0-9]+)\.|(?P<legacy>[a-z]+(?:-[a-z]+)+-[0-9]+)\.queue\.)"
)


class QueueAddress(msgspec.Struct, frozen=True, gc=False):
    account: str | None  # None: the account of the caller
    region: str | None  # None: the region of the signature, else the default
    name: str


@lru_cache(maxsize=_CACHED_MAX)
def parse(url: str) -> QueueAddress:
    """Parse a queue URL, its path, or a queue name. Raises a fault if it is none of these."""
    if len(url) > _URL_CHARS_MAX:
        raise fault("InvalidAddress", "The queue URL is too long.")
    if url and "/" not in url and ":" not in url:
        return _address(None, None, url)
    match = _URL.match(url)
    account, region = (None, None) if match is None else match.group("account", "region")
    if account == _NO_ACCOUNT and region is None:
        account = None
    elif account is None or not is_account(account):
        match = None
    if match is None or (region is not None and not is_region(region)):
        raise fault("InvalidAddress", f"The address {url} is not valid for this endpoint.")
    if region is None and match["host"] is not None:
        region = region_in_host(match["host"])
    return _address(account, region, match["name"])


def region_in_host(host: str) -> str | None:
    """Return the region in a host ``sqs.<region>.…``, ``sns.<region>.…`` or
    ``<region>.queue.…``, or None."""
    match = _HOST_REGION.match(host.lower())
    return None if match is None else match["modern"] or match["legacy"]


def build(base_url: str, *, account: str, name: str) -> str:
    """Return the URL of a queue. ``base_url`` is the scheme and host that the client used."""
    return f"{base_url.rstrip('/')}/{account}/{name}"


def parse_arn(arn: str) -> QueueAddress | None:
    """Parse ``arn:aws:sqs:<region>:<account>:<name>``; return None for any other text."""
    parts = arn.split(":", 5)  # a share's name has a colon
    if len(parts) != 6 or parts[0] != "arn" or not parts[1].startswith("aws") or parts[2] != "sqs":
        return None
    region, account, name = parts[3:]
    if not (is_region(region) and is_account(account) and _is_name(name)):
        return None
    return QueueAddress(account, region, name)


def _address(account: str | None, region: str | None, name: str) -> QueueAddress:
    if not _is_name(name):
        raise fault("QueueDoesNotExist")
    return QueueAddress(account, region, name)


def _is_name(text: str) -> bool:
    return is_queue_name(text) or is_share_name(text)
