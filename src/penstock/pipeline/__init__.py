"""The Spark pipeline: jobs that read the server's topics and keep what they find in a lake.

A client of the server like any other, in processes of its own. Only this package imports PySpark,
PyArrow and Delta; what the modules here need of the rest of Penstock is ``model``, ``record``,
``wire``, ``net`` and ``telemetry``. Importing the package itself imports nothing.
"""
