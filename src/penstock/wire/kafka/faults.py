"""Kafka's error codes, and a table that maps Penstock's errors to them.

Most replies have only a code, so clients decide by the code whether to retry, to go to another
node, or to give up. ``is_retriable`` says whether Kafka's own clients retry after the code."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from penstock.model import errors

_AGAIN = True
_FINAL = False


class ErrorCode(IntEnum):
    is_retriable: bool
    message: str

    # The defaults are for the type checker, which takes ErrorCode(3) for a call of this method.
    def __new__(cls, code: int, is_retriable: bool = False, message: str = "") -> "ErrorCode":
        made = int.__new__(cls, code)
        made._value_ = code
        made.is_retriable = is_retriable
        made.message = message
        return made

    UNKNOWN_SERVER_ERROR = -1, _FINAL, "The server failed unexpectedly."
    NONE = 0, _FINAL, ""
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "The offset is outside the log."
    CORRUPT_MESSAGE = 2, _AGAIN, "The batch does not match its checksum or its length."
    UNKNOWN_TOPIC_OR_PARTITION = 3, _AGAIN, "Unknown topic or partition."
    INVALID_FETCH_SIZE = 4, _FINAL, "The requested number of bytes is invalid."
    LEADER_NOT_AVAILABLE = 5, _AGAIN, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, _AGAIN, "This node does not lead the partition."
    REQUEST_TIMED_OUT = 7, _AGAIN, "The request timed out."
    BROKER_NOT_AVAILABLE = 8, _FINAL, "The node is not available."
    REPLICA_NOT_AVAILABLE = 9, _AGAIN, "The replica is not available."
    MESSAGE_TOO_LARGE = 10, _FINAL, "The batch is larger than the topic allows."
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "The metadata of the committed offset is too long."
    COORDINATOR_LOAD_IN_PROGRESS = 14, _AGAIN, "The coordinator is still loading."
    COORDINATOR_NOT_AVAILABLE = 15, _AGAIN, "The coordinator is not available."
    NOT_COORDINATOR = 16, _AGAIN, "This node is not the coordinator of the group or transaction."
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "The topic name is invalid."
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "The records are larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, _AGAIN, "Too few replicas are in sync to accept the records."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _AGAIN, "The records reached too few replicas."
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, _FINAL, "The group has another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "The members have no protocol in common."
    INVALID_GROUP_ID = 24, _FINAL, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, _FINAL, "Unknown member of the group."
    INVALID_SESSION_TIMEOUT = 26, _FINAL, "The session timeout is out of range."
    REBALANCE_IN_PROGRESS = 27, _FINAL, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "The offset or its metadata is too large to commit."
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "Access to the topic is denied."
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "Access to the group is denied."
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "Access to the cluster is denied."
    INVALID_TIMESTAMP = 32, _FINAL, "A timestamp is out of the range that the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "The SASL mechanism is not supported."
    ILLEGAL_SASL_STATE = 34, _FINAL, "The request is not valid in this state of the SASL handshake."
    UNSUPPORTED_VERSION = 35, _FINAL, "This version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, _FINAL, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, _FINAL, "The replication factor is invalid."
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "The replica assignment is invalid."
    INVALID_CONFIG = 40, _FINAL, "A config has an invalid value."
    NOT_CONTROLLER = 41, _AGAIN, "Another node is the controller."
    INVALID_REQUEST = 42, _FINAL, "The request is contradictory or incomplete."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "Only record batches with magic 2 are supported."
    POLICY_VIOLATION = 44, _FINAL, "A policy of the cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FINAL, "Out of order: an earlier batch is missing."
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "The batch was appended already."
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "A newer producer uses the same producer id."
    INVALID_TXN_STATE = 48, _FINAL, "The request is not valid in this state of the transaction."
    INVALID_PRODUCER_ID_MAPPING = 49, _FINAL, "The transactional id has another producer id."
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "The transaction timeout is longer than allowed."
    CONCURRENT_TRANSACTIONS = 51, _AGAIN, "The previous transaction is still being completed."
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "A newer coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "Access to the transactional id is denied."
    SECURITY_DISABLED = 54, _FINAL, "Security is switched off."
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "Not tried, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, _AGAIN, "The node's disk cannot be written or read."
    LOG_DIR_NOT_FOUND = 57, _FINAL, "Unknown log directory."
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "The credentials were not accepted."
    UNKNOWN_PRODUCER_ID = 59, _FINAL, "The partition does not know this producer."
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "The partition is being moved."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "Delegation tokens are disabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "Unknown delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "Only the owner or a renewer may do this."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _FINAL, "Log in with a password or key."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "Access to the delegation token is denied."
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "The principal type must be User."
    NON_EMPTY_GROUP = 68, _FINAL, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, _FINAL, "Unknown group."
    FETCH_SESSION_ID_NOT_FOUND = 70, _AGAIN, "Unknown fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, _AGAIN, "The fetch session has another epoch."
    TOPIC_DELETION_DISABLED = 73, _FINAL, "Topic deletion is disabled."
    FENCED_LEADER_EPOCH = 74, _AGAIN, "The partition has a newer leader than the client knows."
    UNKNOWN_LEADER_EPOCH = 75, _AGAIN, "The client knows a newer leader than this node."
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "This compression type is not supported."
    OFFSET_NOT_AVAILABLE = 78, _AGAIN, "The new leader does not know its high watermark yet."
    MEMBER_ID_REQUIRED = 79, _FINAL, "Join again with the member id given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _AGAIN, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "The group has its maximum number of members."
    FENCED_INSTANCE_ID = 82, _FINAL, "Another member uses this instance id now."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _AGAIN, "No eligible leader is available."
    ELECTION_NOT_NEEDED = 84, _AGAIN, "No election is needed: the leader is valid."
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "A member of the group still reads this topic."
    INVALID_RECORD = 87, _FINAL, "A record or its batch breaks a rule of the topic."
    UNSTABLE_OFFSET_COMMIT = 88, _AGAIN, "An open transaction has pending offsets."
    THROTTLING_QUOTA_EXCEEDED = 89, _AGAIN, "Quota exceeded: retry later."
    PRODUCER_FENCED = 90, _FINAL, "A newer producer has taken over the transactional id."
    RESOURCE_NOT_FOUND = 91, _FINAL, "The resource was not found."
    DUPLICATE_RESOURCE = 92, _FINAL, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "The credential does not meet the requirements."
    INVALID_UPDATE_VERSION = 95, _FINAL, "The version given is not newer."
    FEATURE_UPDATE_FAILED = 96, _FINAL, "The feature update failed."
    UNKNOWN_TOPIC_ID = 100, _AGAIN, "Unknown topic id."
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "Unknown node id."
    INCONSISTENT_TOPIC_ID = 103, _AGAIN, "The topic was deleted and created again."
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "Unknown transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _AGAIN, "The fetch session mixes topic names and topic ids."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "The offset is in the archive."
    FENCED_MEMBER_EPOCH = 110, _FINAL, "The member epoch is old: rejoin the group."
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "Another member still uses this instance id."
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "Unknown assignor."
    STALE_MEMBER_EPOCH = 113, _FINAL, "The member's epoch is old: send a heartbeat first."
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "The endpoint type does not match."
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "The endpoint type is not supported."
    TRANSACTION_ABORTABLE = 120, _FINAL, "The transaction must be aborted."
    INVALID_RECORD_STATE = 121, _FINAL, "The record is not leased to this member."
    SHARE_SESSION_NOT_FOUND = 122, _AGAIN, "Unknown share session."
    INVALID_SHARE_SESSION_EPOCH = 123, _AGAIN, "The share session has another epoch."
    FENCED_STATE_EPOCH = 124, _FINAL, "The state epoch of the share group is old."
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "The pattern is not a valid regular expression."
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "Reconnect to the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "The topology is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "The epoch of the topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "The group has a newer topology."
    SHARE_SESSION_LIMIT_REACHED = 133, _AGAIN, "The limit of share sessions is reached."


# The nearest base class of an error applies, so a new subclass needs no row here.
CODES: Mapping[type[errors.PenstockError], ErrorCode] = MappingProxyType(
    {
        errors.PenstockError: ErrorCode.UNKNOWN_SERVER_ERROR,
        errors.InvalidRequest: ErrorCode.INVALID_REQUEST,
        errors.QuotaExceeded: ErrorCode.POLICY_VIOLATION,
        errors.InvalidMessage: ErrorCode.INVALID_RECORD,
        errors.InvalidReceipt: ErrorCode.INVALID_RECORD_STATE,
        errors.ExpiredReceipt: ErrorCode.INVALID_RECORD_STATE,
        errors.NotLeased: ErrorCode.INVALID_RECORD_STATE,
        errors.NotFound: ErrorCode.RESOURCE_NOT_FOUND,
        errors.TopicNotFound: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.Conflict: ErrorCode.INVALID_REQUEST,
        errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
        # Kafka replies the same for a name whose deletion is not complete.
        errors.TopicDeletedRecently: ErrorCode.TOPIC_ALREADY_EXISTS,
        errors.PurgeInProgress: ErrorCode.OPERATION_NOT_ATTEMPTED,
        # Another writer was faster each time, so the client should retry.
        errors.VersionConflict: ErrorCode.REQUEST_TIMED_OUT,
        errors.AccessDenied: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        errors.Overloaded: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        errors.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
        # Clients then request metadata, which names another node.
        errors.Draining: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        # Producers that must not write twice number their batches, so every producer may retry.
        errors.LeaderMoved: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
        errors.Damaged: ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def code_of(error: errors.PenstockError) -> ErrorCode:
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
