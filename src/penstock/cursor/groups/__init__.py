"""Consumer groups: which member reads which partitions of a stream, and their committed offsets.

    groups.py     all groups of one coordinator partition: the entry point of this package
    table.py      the groups as a fold of the rows; their configs
    classic/      join, sync, heartbeat, leave: a leader among the members assigns
    assigned.py   heartbeats only: the coordinator assigns, members follow epoch by epoch;
                  consumer.py assigns partitions, streams/ the tasks of Kafka Streams
    share.py      heartbeats only, and a partition may have several readers
    offsets.py    committed offsets, and commits whose transaction is still open

Everything here is pure. A call fills a ``Decision``. The state that must survive is a fold of its
rows; timers and parked requests are local to this node and start again after a restart, which may
lengthen a timeout but never shortens one.
"""
