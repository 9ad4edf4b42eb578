"""Opening the log of one partition, with the settings of its topic; what recovery had to do is said
in the node's own log."""

import logging
from dataclasses import replace
from pathlib import Path

from penstock.broker.surroundings import Surroundings
from penstock.log.log import Log, LogConfig
from penstock.model.stream import settings_of
from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)


def log_config(topic: Topic, surroundings: Surroundings) -> LogConfig:
    """Return the node's settings for a log, with those of the topic where they are stricter."""
    stream, node = settings_of(topic, surroundings.defaults), surroundings.log
    age_ms_max = stream.segment_ms
    if stream.is_compacted:
        # Only closed segments are compacted, so this closes one in time.
        age_ms_max = min(age_ms_max, stream.compaction_lag_ms_max)
    return replace(
        node,
        segment_bytes_max=min(node.segment_bytes_max, stream.segment_bytes),
        segment_age_ms_max=min(node.segment_age_ms_max, age_ms_max),
    )


def open_log(topic: Topic, index: int, topics: Path, surroundings: Surroundings) -> Log:
    """``topics``: the folder that has one for each topic. Safe in a thread."""
    folder = topics / topic.topic_id / str(index)
    log = Log.open(folder, log_config(topic, surroundings), now_ms=surroundings.clock.wall_ms())
    report = log.recovery
    if report.truncated_bytes:
        log_.warning(
            "torn tail truncated",
            extra={
                "topic": topic.name,
                "partition": index,
                "bytes": report.truncated_bytes,
                "reason": report.reason,
            },
        )
    if report.is_low_watermark_damaged:
        log_.error(
            "low watermark damaged: deleted records of kept segments are readable again",
            extra={"topic": topic.name, "partition": index, "folder": str(folder)},
        )
    for damage in report.damage:
        log_.error(
            "damage found",
            extra={"topic": topic.name, "partition": index, "reason": str(damage)},
        )
    return log
