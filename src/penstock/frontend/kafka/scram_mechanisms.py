"""The mechanisms of SCRAM as the APIs about passwords number them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.wire.kafka.scram import SHA_256, SHA_512

MECHANISMS: Final[Mapping[int, str]] = MappingProxyType({1: SHA_256, 2: SHA_512})
