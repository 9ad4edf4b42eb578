"""Timeouts and retry limits of all calls to a broker, a coordinator or the metadata service."""

from typing import Final

# ── At another node ──────────────────────────────────────────────────────────────────────────

CALL_MS: Final = 12_000  # longer than a commit that waits for a follower to leave the in-sync set
PUSH_MS: Final = 75_000  # for a single request to an endpoint: its longest timeout and a margin
WAIT_MARGIN_MS: Final = 5_000  # added to the time that a call may wait for messages
GIVE_BACK_MS: Final = 5_000
COORDINATOR_CALL_MS: Final = 5_000  # for calls between coordinators; clients retry
FETCH_HERE_SECONDS_MAX: Final = 3.0  # for a fetch of offsets by another node, which then retries

# ── In a bulkhead of this frontend ───────────────────────────────────────────────────────────

# Shorter than the store's wait for a file lock, and than any client's wait for a reply.
METADATA_DEADLINE_MS: Final = 4_000
# A disk may stall for seconds and recover. Clients wait for a minute, proxies for half a minute.
BACKEND_DEADLINE_MS: Final = 15_000
PARKED_MARGIN_MS: Final = 10_000  # added to the time that a call may wait for messages

# ── Retries ──────────────────────────────────────────────────────────────────────────────────

RETRY_SECONDS_MAX: Final = 5.0  # from the first attempt; then the last error is raised
PAUSE_SECONDS_MIN: Final = 0.01  # doubled with each attempt
PAUSE_SECONDS_MAX: Final = 0.25  # also the delay until a missed change of leaders is noticed
HINTS_MAX: Final = 3  # NotLeader hints followed without a pause: two nodes may name each other
CLOSE_SECONDS_MAX: Final = 5.0  # for background calls when a frontend stops

# ── A listener at another node: repeated calls that wait ─────────────────────────────────────

WATCH_MS: Final = 20_000
WATCH_PAUSE_SECONDS_MIN: Final = 0.1  # after a failure
WATCH_PAUSE_SECONDS_MAX: Final = 2.0
FOLLOW_PAUSE_SECONDS: Final = 0.05  # for a new leader to open its partition

# ── A receive from several nodes ─────────────────────────────────────────────────────────────

LOOK_SECONDS_MAX: Final = 1.0  # for one of several nodes to reply; then the next one is called
LAST_MS: Final = 20  # with less time left a receive is not parked again
REPLY_SECONDS: Final = 0.5  # for replies at the end of the wait, before calls are cancelled
LEASE_PAUSE_SECONDS_MIN: Final = 0.05  # before a parked receive calls a failed node again
LEASE_PAUSE_SECONDS_MAX: Final = 1.0
