"""The Kafka protocol, bytes in and bytes out.

``frame`` reads what stands in front of a request and writes what stands in front of a reply;
``apis`` is the table of what is served in which versions. ``produce``, ``fetch`` and ``batches``
carry the records and are laid out by hand; everything else is in ``generated``, written by
``tools/kafka_codec.py`` from Kafka's own schemas. Sockets, groups and logs are left to others.
"""
