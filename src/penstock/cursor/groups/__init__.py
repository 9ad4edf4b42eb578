"""Consumer groups: which member reads which partitions of a stream, and their committed offsets.

    groups.py     all groups of one coordinator partition: the entry point of this package
    table.py      the groups as a fold of the rows; their configs
    classic/      join, sync, heartbeat, leave: a leader among the members assigns
    consumer.py   heartbeats only: the coordinator assigns, members follow epoch by epoch
    streams/      the same for the tasks of a Kafka Streams application
    assigned.py   what consumer groups and streams groups share
    share.py      heartbeats only, and a partition may have several readers
    offsets.py    committed offsets, and commits whose transaction is still open
    assignors.py  how the coordinator assigns partitions to members
    records.py    the rows of the internal topic

Everything here is pure. A call fills a ``Decision``: replies for tickets (some belong to requests
that were parked earlier) and rows to append to a compacted topic. The state
that must survive is a fold of those rows; timers and parked requests are local to this node and
start again after a restart, which may lengthen a timeout but never shortens one.
"""
