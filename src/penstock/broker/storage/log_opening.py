"""Opens the log of one partition with the settings of its topic, and logs what recovery did."""

import logging
from dataclasses import replace
from pathlib import Path

from penstock.broker.context.context import BrokerContext
from penstock.log.log import Log, LogConfig
from penstock.model.stream import settings_of
from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)


def log_config(topic: Topic, context: BrokerContext) -> LogConfig:
    """Return the node's settings for a log, or those of the topic where they are stricter."""
    stream, node = settings_of(topic, context.defaults), context.log
    age_ms_max = stream.segment_ms
    if stream.is_compacted:
        # Only closed segments are compacted, so this closes the last one in time.
        age_ms_max = min(age_ms_max, stream.compaction_lag_ms_max)
    return replace(
        node,
        segment_bytes_max=min(node.segment_bytes_max, stream.segment_bytes),
        segment_age_ms_max=min(node.segment_age_ms_max, age_ms_max),
    )


def open_log(topic: Topic, index: int, topics: Path, context: BrokerContext) -> Log:
    """``topics``: the folder of all topics. Safe in a thread."""
    folder = topics / topic.topic_id / str(index)
    log = Log.open(folder, log_config(topic, context), now_ms=context.clock.wall_ms())
    report = log.recovery
    fields = {"topic": topic.name, "partition": index}
    if report.truncated_bytes:
        truncated = {"bytes": report.truncated_bytes, "reason": report.reason}
        log_.warning("torn tail truncated", extra=fields | truncated)
    if report.is_low_watermark_damaged:
        log_.error(
            "low watermark damaged: deleted records of kept segments are readable again",
            extra=fields | {"folder": str(folder)},
        )
    for damage in report.damage:
        log_.error("damage found", extra=fields | {"reason": str(damage)})
    return log
