"""All limits, with their reasons. Everything that can grow has a limit."""

KIB = 1_024
MIB = 1_048_576
SECOND_MS = 1_000
MINUTE_MS = 60_000
FOREVER_MS = 1 << 62  # beyond every time

# ── Limits of SQS ────────────────────────────────────────────────────────────────────────────
MESSAGE_BYTES_MAX = MIB  # body + attributes; also the sum over one batch call
BATCH_ENTRIES_MAX = 10
ATTRIBUTES_PER_MESSAGE_MAX = 10
LEASE_MS_MAX = 43_200 * SECOND_MS  # twelve hours, extensions included
DELAY_MS_MAX = 900 * SECOND_MS
ATTEMPTS_MAX = 2**31 - 1  # SDKs read receive counts as 32-bit numbers
WAIT_MS_MAX = 20 * SECOND_MS
DEDUP_WINDOW_MS = 5 * MINUTE_MS
ATTEMPT_WINDOW_MS = 5 * MINUTE_MS  # how long the same attempt id gets the same reply
QUEUE_PARTITIONS_MAX = 64  # all are opened together, and each needs files and a cursor
PURGE_INTERVAL_MS = MINUTE_MS
DELETED_NAME_MS = MINUTE_MS
IN_FLIGHT_MAX = 120_000  # per queue; also limits the memory of a cursor
TAGS_MAX = 50

OFFSET_MAX = 1 << 62  # beyond every log

# ── Cursor memory ────────────────────────────────────────────────────────────────────────────
# Records that were passed over (delayed, group locked, unfair) are remembered by offset. Beyond
# this limit the cursor stops reading ahead.
DEFERRED_MAX = 120_000
DEDUP_ENTRIES_MAX = 1_000_000  # per partition, up to 180 MB; then messages are throttled
ATTEMPT_IDS_MAX = 10_000
LOCKS_SHOWN_MAX = 10  # locked message groups listed in the statistics of a queue
# Earlier messages of a group that peek scans to find the one in flight. With this many, ten peeked
# messages take about a millisecond.
LOCK_STEPS_MAX = 1_000
WINDOW_RECORDS_MAX = 512  # decoded records ahead of the cursor
WINDOW_BYTES_MAX = MIB
READ_BYTES_MAX = 256 * KIB  # one read-ahead from the log
# Bytes of ``__groups`` that one fetch of ``__consumer_offsets`` decodes: about 600 rows in 10 ms.
OFFSETS_VIEW_BYTES_MAX = 64 * KIB

# Records, and bytes of their bodies, that a share's filter judges in one turn: about 5 ms.
JUDGED_RECORDS_MAX = 128
JUDGED_BYTES_MAX = 256 * KIB
# Records that a share does not want, after which an event moves its cursor past them. A new leader
# judges at most this many again.
UNWANTED_MAX = 1_000
# Readers with a bookmark in one partition. All replicas keep them in memory and in checkpoints.
BOOKMARKS_PER_PARTITION_MAX = 1_024
READER_CHARS_MAX = 64
# Shares with events in a log that a replica does not know from the catalog, as their checkpoint
# lists them: 32 bytes each.
UNKNOWN_SHARES_MAX = 10_000

# ── Log ──────────────────────────────────────────────────────────────────────────────────────
SEGMENT_BYTES_MAX = 64 * MIB
SEGMENT_AGE_MS_MAX = 7 * 24 * 3_600 * SECOND_MS
SCRUB_BYTES_PER_SECOND = 4 * MIB  # speed at which logs are read again to find damage
SCRUB_INTERVAL_MS = 24 * 3_600 * SECOND_MS
INDEX_INTERVAL_BYTES = 4 * KIB
TAIL_BYTES_MAX = 4 * MIB  # recent batches kept in memory, per partition
TAILS_BYTES_MAX = 64 * MIB  # recent batches of all partitions of a node
BATCH_BYTES_MAX = 16 * MIB  # a stored batch; a header with a larger length is damaged
# A producer's batch for a topic whose records the server opens: a queue, or an encrypted topic.
OPENED_BATCH_RECORDS_MAX = 10_000  # the default of librdkafka
OPENED_BATCH_BYTES_MAX = 16 * MIB  # after decompression
# One record of such a batch for a queue: a message of 1 MiB and the overhead of a record. Streams
# accept larger records; those above 4 MiB are not delivered if the stream becomes a queue.
OPENED_RECORD_BYTES_MAX = MIB + 64 * KIB
DELIVERED_RECORD_BYTES_MAX = 4 * MIB
# Bytes of such batches that all queues of a node together keep decompressed for receives.
OPENED_BYTES_MAX = 64 * MIB
FLUSH_RECORDS_MAX = 1_000  # records coalesced into one batch
# Rows of one coordinator topic that operators have skipped, one by one: 100 KB in the catalog.
SKIPPED_ROWS_MAX = 1_000
DISK_RESERVE_BYTES = 64 * MIB  # kept free for leases and acks
DISK_RESERVE_SHARE = 0.05  # fraction of a small disk

# ── Configs of groups and other resources, in the metadata store ─────────────────────────────
# In the memory of every node: a group with all 17 configs takes about 2 KB.
RESOURCE_CONFIGS_MAX = 100_000
RESOURCE_CONFIGS_BYTES_MAX = 64 * KIB  # configs of one resource as JSON
# Users and client ids with quotas in one tenant other than the nodes' own.
CLIENT_QUOTAS_PER_TENANT_MAX = 1_000
# Characters of a user or client id with quotas. Clients may choose ids of up to 32 KiB, and a node
# remembers thousands, so only the first characters of a longer id count.
CLIENT_NAME_CHARS_MAX = 256

# ── Access rules of Kafka (ACLs), in the metadata store ──────────────────────────────────────
# In the memory of every node, about 1 KB each; DescribeAcls shows all of a tenant in one reply.
ACLS_PER_TENANT_MAX = 10_000
ACLS_MAX = 100_000
ACL_TEXT_CHARS_MAX = 1_024  # for each of principal, host and resource name

# ── Delegation tokens of Kafka, in the metadata store ────────────────────────────────────────
# In the memory of every node, about 1 KB each; all of a tenant are shown in one reply.
TOKENS_PER_TENANT_MAX = 1_000
TOKENS_MAX = 20_000
TOKEN_RENEWERS_MAX = 100
TOKEN_LIFE_MS_MAX = 7 * 24 * 3_600 * SECOND_MS  # as in Kafka
TOKEN_RENEWAL_MS_MAX = 24 * 3_600 * SECOND_MS  # as in Kafka

# ── Subscriptions, in the metadata store ─────────────────────────────────────────────────────
SUBSCRIPTIONS_PER_TOPIC_MAX = 10_000
SUBSCRIPTIONS_MAX = 100_000  # in the memory of every node, 1.2 KB each and their policies
# Attributes, webhook settings and secrets of one subscription as JSON: a filter policy of 256 KiB
# whose every second character is escaped. With all other fields it fits an entry of the store.
SUBSCRIPTION_BYTES_MAX = 384 * KIB
SUBSCRIPTION_PARTITIONS_MAX = 1_000  # of its topic: the offset at which each begins is stored
SUBSCRIPTIONS_BYTES_MAX = 256 * MIB  # texts of all subscriptions together, on every node
ENDPOINT_CHARS_MAX = 2_048  # a URL, an ARN, an address
SUBSCRIPTION_ATTRIBUTES_MAX = 32  # SNS knows less than ten
# A subscription that is not confirmed is deleted after this time. A deleted one that was confirmed
# by its endpoint can be restored by its endpoint for as long.
CONFIRMATION_MS = 48 * 3_600 * SECOND_MS

# ── SNS address books, in the metadata store ─────────────────────────────────────────────────
BOOK_ENTRY_BYTES_MAX = 64 * KIB  # as JSON; credentials of a mobile app have some 5 KB
BOOKS_BYTES_MAX = 64 * MIB  # of all entries together, in the memory of every node
BOOK_ENTRIES_MAX = 131_072  # an entry counts as 512 bytes and its texts
SANDBOX_NUMBERS_MAX = 10  # phone numbers of a tenant and region, as in SNS

# ── Kafka requests ───────────────────────────────────────────────────────────────────────────
# Elements of one array of a request, nested ones counted over the whole request. At these sizes
# a request is decoded in less than 10 ms; the action then works in slices (net/slices.py).
KAFKA_PARTITIONS_MAX = 10_000  # partitions, topics that are read, and tagged fields
KAFKA_ENTRIES_MAX = 1_000  # groups, configs, ACLs, topics to change
# Bad records listed in one Produce reply, about 100 bytes each. Without a limit, a few kilobytes of
# compressed records could cause a reply of gigabytes.
RECORD_ERRORS_MAX = 10_000
# A topic pattern (RE2 syntax). At these sizes it is compiled in less than 15 ms.
PATTERN_CHARS_MAX = 2_048
PATTERN_DEPTH_MAX = 100  # nested groups: the parser is recursive
PATTERN_STATES_MAX = 5_000  # enough for x{0,1000}; also bounds the time of one step of a match
# States of compiled patterns that one tenant's groups keep, about 150 bytes each. Beyond this,
# patterns are compiled again when a topic is created.
PATTERN_STATES_KEPT_MAX = 200_000
KAFKA_USERS_MAX = 100  # users whose passwords one request changes
KAFKA_ENTRIES_PER_REQUEST = 100  # entries that count as one request in a tenant's rate

# ── Streams groups ───────────────────────────────────────────────────────────────────────────
# Tasks of one group, standby tasks not counted. At this size one heartbeat of a member that has all
# tasks keeps the event loop busy for about 10 ms.
STREAMS_TASKS_MAX = 2_000
# Tasks that the event loop assigns itself, standby tasks and members counted: about 4 ms. A thread
# assigns more: the largest group takes about 80 ms.
STREAMS_TASKS_AT_ONCE_MAX = 500
STREAMS_TOPICS_MAX = 1_000  # topics in a topology, including internal ones: checked in 5 ms
# Size of a topology or a member in the group's log. A topology has about 1 KB for each topic.
STREAMS_TOPOLOGY_BYTES_MAX = 1024 * 1024
STREAMS_MEMBER_BYTES_MAX = 16 * 1024

# ── Connections ──────────────────────────────────────────────────────────────────────────────
HEADER_BYTES_MAX = 16 * KIB
# A 1 MiB body can grow sixfold when every character is escaped in JSON, threefold in a form.
REQUEST_BYTES_MAX = 8 * MIB
# A larger body is hashed and decoded in slices: the most expensive 64 KiB (escapes of a form) take
# about 10 ms to decode.
WHOLE_BODY_BYTES_MAX = 64 * KIB
FORM_BYTES_MAX = 4 * MIB  # 1 MiB of messages with every byte escaped is 3 MiB
# Strings in a JSON body above WHOLE_BODY_BYTES_MAX, and bytes outside of strings. The largest valid
# body, ten messages with ten attributes each, has 1,200 strings and 20 KiB outside.
JSON_STRINGS_MAX = 8_000
JSON_STRUCTURE_BYTES_MAX = 64 * KIB
JSON_STRING_CHARS_MAX = 2 * MIB  # in one value; the largest message in base64 has 1.4 million
JSON_ENTRIES_MAX = 1_000  # in one list or map
CONNECTIONS_MAX = 20_000
BODIES_BYTES_MAX = 256 * MIB  # in incomplete request bodies
# Iterations of a password's hash, as Kafka's tools allow. The server computes them for each PLAIN
# login: 16,384 take 10 to 20 ms. Larger numbers that were stored earlier still work.
SCRAM_ITERATIONS_MIN = 4_096  # RFC 7677
SCRAM_ITERATIONS_MAX = 16_384
DERIVATIONS_MAX = 4  # password hashes computed at once, in threads
HEADER_SECONDS_MAX = 10.0
BODY_SECONDS_MAX = 30.0
IDLE_SECONDS_MAX = 75.0
WRITE_STALL_SECONDS_MAX = 30.0  # then the connection to a client that does not read is closed
WAITS_PER_PARTITION_MAX = 20_000
# Partitions per callee that have a circuit breaker, together about 3 MiB.
FAILING_PARTITIONS_MAX = 10_000

# ── One tenant ───────────────────────────────────────────────────────────────────────────────
# Default quotas of every tenant except the node's own, enough for an application of average size.
TENANT_QUEUES_MAX = 500  # queues, topics and shares
TENANT_PARTITIONS_MAX = 500
TENANT_GROUPS_MAX = 500  # consumer and share groups
TENANT_OFFSET_BYTES_MAX = 16 * MIB  # committed offsets in memory: about 130,000 without metadata
TENANT_TRANSACTIONAL_IDS_MAX = 1_000
TENANT_SUBSCRIPTIONS_MAX = 1_000
TENANT_STORED_BYTES_MAX = 10_240 * MIB
TENANT_CONNECTIONS_MAX = 1_000  # SQS and Kafka together, divided among the frontends
# Percent of a common limit that one tenant may use, where there is no quota.
TENANT_BODIES_PERCENT = 25  # of incomplete request bodies, for one client address
TENANT_CALLS_PERCENT = 50  # of calls in progress to one callee
TENANT_HELD_PERCENT = 10  # of delayed error replies
TENANT_SESSIONS_PERCENT = 10  # of fetch sessions and share sessions
TENANT_FACTS_PERCENT = 10  # of denials in the audit log, and of usage and telemetry rows
TENANT_SUBSCRIPTIONS_PERCENT = 10  # of the bytes of subscriptions
TENANT_BOOKS_PERCENT = 10  # of the bytes of address books: some 10,000 devices
TENANT_DIRECT_PERCENT = 25  # of messages to single endpoints that wait for a gateway
TENANT_TAILS_PERCENT = 12.5  # of waiting tail commands: eight of 64
TENANT_REQUESTS_PER_SECOND = 2_000.0  # divided among the frontends
TENANT_REQUESTS_BURST = 4_000.0
TENANT_WAITS_MAX = 2_000  # parked long polls, divided among the frontends
