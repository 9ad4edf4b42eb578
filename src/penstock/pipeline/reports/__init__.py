"""The reports of ``penstock pipeline report``: one file with a ``JOB`` each."""
