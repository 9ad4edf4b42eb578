"""The states of a transaction by the names that Kafka's tools show and filter by."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.cursor.transactions import TxnState

STATE_NAMES: Final[Mapping[TxnState, str]] = MappingProxyType(
    {
        TxnState.EMPTY: "Empty",
        TxnState.ONGOING: "Ongoing",
        TxnState.PREPARE_COMMIT: "PrepareCommit",
        TxnState.PREPARE_ABORT: "PrepareAbort",
        TxnState.COMPLETE_COMMIT: "CompleteCommit",
        TxnState.COMPLETE_ABORT: "CompleteAbort",
    }
)
# States that other brokers have, and tools may ask for: no transaction here is ever in one.
OTHER_NAMES: Final = frozenset(("Dead", "PrepareEpochFence"))
