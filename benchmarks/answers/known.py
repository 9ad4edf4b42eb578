"""Differences between the replies of Apache Kafka and Penstock that stay. docs/kafka.md has the
reason of each, under the heading given here."""

import re
from typing import Final, NamedTuple


class Known(NamedTuple):
    heading: str
    title: str  # regular expressions: of the question
    path: str  # and of the field


KNOWN: Final = (
    Known("What is served", r"ApiVersions", r"api_keys\[8[013-7]\]"),
    Known("What is served", r"ApiVersions", r"(supported|finalized)_features\[.*"),
    Known("What is served", r"ListOffsets v8, newest, after", r".*\.offset"),
    Known("What is served", r"Fetch v16, a diverging epoch", r"topics\[0\]\.partitions\[0\]\..*"),
    Known("What is served", r"OffsetCommit v9, no group", r".*error_code"),
    Known("What is served", r"ListGroups v5, (types|states)", r"groups\[(simple|\d)\]"),
    Known("Access rules", r"(Create|Describe|Delete)Acls v3, resource type 0", r""),
    Known("Access rules", r"CreateAcls", r"results\[0\]\.error_code"),
    Known("Delegation tokens", r"DescribeDelegationToken", r"tokens\[[67]\]"),
    Known("Delegation tokens", r"CreateDelegationToken v3, of root, by a rule", r"error_code"),
    Known("Replicas and leaders in a cluster", r"DescribeQuorum", r"nodes\[\d\]\.listeners\[.*"),
    Known("Share groups", r"ShareFetch v1, first", r"responses\[0\]"),
    Known("Share groups", r"ShareFetch v1, unknown topic", r"error_code|acqui.*|responses.*"),
    Known("Streams groups", r"StreamsGroupHeartbeat v0, negative epoch", r"error_code"),
    Known("Group configs", r"DescribeConfigs v4, group", r".*assignment\.interval\.ms.*"),
    Known("Group configs", r"ConsumerGroupHeartbeat v1, pattern", r"assignment\..*"),
    Known("Group configs", r"ListGroups v5, (types|states)", r"groups\[p\d+\].*"),
    Known("Group configs", r"ShareGroupHeartbeat v1, first", r"assignment\..*"),
    Known("Group configs", r"(Consumer|Share)GroupHeartbeat v1, (first|a group)", r"member_epoch"),
    Known("Group configs", r"ConsumerGroupDescribe v1, modern", r".*epoch"),
    Known("Broker configs", r"DescribeConfigs v4, (topic|broker)", r".*(config_source|synonyms.*)"),
    Known("Broker configs", r"DescribeConfigs v4, broker", r".*\[log\.retention\.ms\]\.value"),
    Known("Broker configs", r"DescribeConfigs v4, broker", r".*\[offsets\.topic\.num.*"),
    Known("Broker configs", r"CreateTopics v7, plain", r".*\[min\.insync.*\]\.config_source"),
    Known("Broker configs", r"(CreateTopics|DescribeConfigs)", r".*\[segment\.bytes\]\..*value"),
    Known("Broker configs", r".*, broker, overrides by host", r".*\.error_code"),
    Known("Broker configs", r"ListConfigResources", r"config_resources\[2 __.*"),
)


def is_known(title: str, path: str) -> bool:
    return any(re.match(known.title, title) and re.fullmatch(known.path, path) for known in KNOWN)
