"""Opening the log of one partition, with the settings of its topic; what recovery had to do is said
in the node's own log."""

import logging
from dataclasses import replace
from pathlib import Path

from penstock.broker.surroundings import Surroundings
from penstock.log.log import Log
from penstock.model.stream import settings_of
from penstock.model.topic import Topic

log_ = logging.getLogger(__name__)


def open_log(topic: Topic, index: int, topics: Path, surroundings: Surroundings) -> Log:
    """``topics``: the folder that has one for each topic. Safe in a thread."""
    stream = settings_of(topic)
    config = replace(
        surroundings.log,
        segment_bytes_max=min(surroundings.log.segment_bytes_max, stream.segment_bytes),
        segment_age_ms_max=min(surroundings.log.segment_age_ms_max, stream.segment_ms),
    )
    folder = topics / topic.topic_id / str(index)
    log = Log.open(folder, config, now_ms=surroundings.clock.wall_ms())
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
    for damage in report.damage:
        log_.error(
            "damage found",
            extra={"topic": topic.name, "partition": index, "reason": str(damage)},
        )
    return log
