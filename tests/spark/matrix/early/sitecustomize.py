"""Imports what Spark's Python workers need before their daemon forks them: each then costs a fork, not a second.

Spark starts a process for each step of a Python data source, several to a micro-batch. Python imports this module by
its name, for the matrix puts its directory on the path; what a worker does is Spark's own, unchanged.
"""

from __future__ import annotations

import gc
import sys

if "pyspark.daemon" in sys.orig_argv:
    import pandas
    import pyarrow
    import pyspark.worker

    import pyspark_fleetlog
    from fleetlog.spark.sink import executor_mode, writer

    EARLY = (pandas, pyarrow, pyspark.worker, pyspark_fleetlog, executor_mode, writer)
    gc.freeze()  # a worker's collections leave the pages alone that it shares
