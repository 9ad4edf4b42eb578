"""Consumer groups: which member reads which partitions, and the committed offsets. The entry point
is ``cursor/coordinated_groups.py``.

    table.py      the groups and their configs, rebuilt from the rows in the log
    classic/      the classic protocol (join, sync, heartbeat, leave): a member assigns partitions
    assigned.py   protocols in which the coordinator assigns and members send only heartbeats:
                  consumer.py assigns partitions, streams/ the tasks of Kafka Streams
    share.py      share groups, where a partition may have several readers
    offsets.py    committed offsets, and commits whose transaction is still open

The code here does no I/O: each call fills a ``Decision``. State that must survive is written as
rows, which are records of the coordinator's log. Timers and parked requests are local to this node.
Timers start again after a restart, which may lengthen a timeout but never shortens one."""
