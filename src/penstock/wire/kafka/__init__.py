"""The Kafka protocol, bytes in and bytes out.

``frame`` reads what stands in front of a request and writes what stands in front of a reply;
``apis`` is the table of what is served in which versions. ``produce``, ``fetch`` and ``batches``
carry the records and are written by hand. The classes of all other messages are in ``generated``,
written by ``tools/kafka_messages.py`` from Kafka's own schemas; ``compiler`` makes their codecs.
"""
