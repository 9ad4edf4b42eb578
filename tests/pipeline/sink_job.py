"""A query that copies a topic to another, for tests that kill it: a process of its own.

python -m tests.pipeline.sink_job KAFKA SOURCE TARGET CHECKPOINT [once]
"""

from __future__ import annotations

import sys


def main() -> None:
    kafka, source, target, checkpoint, *rest = sys.argv[1:]
    from penstock.pipeline.session import close_session, open_session

    spark = open_session("copy", master="local[2,4]", is_short=True)
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", kafka)
    rows = (
        reader.option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "300")
        .load()
        .select("key", "value")
    )
    writer = rows.writeStream.format("penstock").option("kafka.bootstrap.servers", kafka)
    writer = writer.option("topic", target).option("checkpointLocation", checkpoint)
    once = {"availableNow": True} if rest else {"processingTime": "0 seconds"}
    writer.trigger(**once).start().awaitTermination()
    close_session(spark)


if __name__ == "__main__":
    main()
