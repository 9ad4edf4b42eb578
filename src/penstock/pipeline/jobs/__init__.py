"""The jobs of ``penstock pipeline run``, ``verify`` and ``cluster``: each file has a ``JOB``."""
