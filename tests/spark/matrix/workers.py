"""Spark's Python daemon with everything imported before it forks: a worker costs a fork, not a second of imports.

Spark starts a process for each step of a Python data source, several to a query. ``spark.python.daemon.module`` names
this module; what a worker does is Spark's own, unchanged.
"""

from __future__ import annotations

import gc

import pandas
import pyarrow
from pyspark.daemon import manager

import pyspark_fleetlog
from spark_udfs import executor_mode, source, writer

EARLY = (pandas, pyarrow, pyspark_fleetlog, executor_mode, source, writer)

if __name__ == "__main__":
    gc.freeze()  # a worker's collections leave the pages that it shares alone
    manager()
