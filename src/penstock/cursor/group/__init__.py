"""Consumer groups: who reads which partitions of a stream, and how far they have come.

    groups.py     all groups of one coordinator partition: the door to everything below
    classic.py    join, sync, heartbeat, leave: members agree, a leader among them assigns
    consumer.py   one heartbeat: the coordinator assigns, members follow epoch by epoch
    streams.py    the same for the tasks of a Kafka Streams application
    share.py      one heartbeat as well: partitions may have several readers
    offsets.py    committed offsets, and those a transaction has not decided yet
    assignors.py  partitions to members, when the coordinator does it
    records.py    what of all this stands in the internal topic, and how

Everything here is pure. A call returns a ``Decision``: answers for tickets (some belong to requests
that were parked earlier), rows to append to a compacted topic, and when to call ``tick``. The
state that must survive is a fold of those rows; timers and parked requests are this node's own and
begin anew after a restart, which may lengthen a time-out but never shortens one.
"""
