"""What stops a query: wrong options, brokers that do not answer, a fence that forbids the write, lost offsets."""

from __future__ import annotations

import re

from fleetlog.wire.errors import ErrorCode

_REASON = re.compile(r"^.*?\bfleetlog\.spark\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)


def reason(problem: BaseException) -> str | None:
    """The sentence of this package in an exception of Spark's, with its type: ``OptionError: option ... is unknown``.

    Spark puts a traceback, the plan and the JVM's stack around it. None for an exception without one. What Spark says
    where a thread has no session gets a sentence that says what to do.
    """
    if type(problem).__module__.startswith("fleetlog.spark."):
        return f"{type(problem).__name__}: {problem}"
    text = str(problem)
    if "DATA_SOURCE_NOT_FOUND" in text and "fleetlog" in text:
        return (
            "DATA_SOURCE_NOT_FOUND: in a thread that Python started call fleetlog.spark.use_in_thread(spark) first, "
            "once; elsewhere fleetlog has to be in the Python that PYSPARK_PYTHON names"
        )
    reasons = _REASON.findall(text)
    return f"{reasons[-1][0]}: {reasons[-1][1].strip()}" if reasons else None


class OptionError(ValueError):
    """An option is missing, misspelt, or has a value that can't be used; the message names it."""


class ClientError(RuntimeError):
    """The brokers did not answer in time, or answered with an error that a retry does not cure.

    ``code``: that error, where an answer carried one.
    """

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class RegistryError(RuntimeError):
    """A schema registry can't be reached, or refuses. A query stops in every mode, as no row is at fault."""


class DataLoss(RuntimeError):
    """Offsets the query has still to read are gone. ``failOnDataLoss=false`` reads on from what is left."""


class TaskFenced(RuntimeError):
    """The batch this task writes for is over: another driver began a newer one, or its transaction timed out."""


class FenceError(RuntimeError):
    """It is not safe to write, or not known whether a batch was written; the message names the remedy."""


class FenceConflict(FenceError):
    """The fence belongs to another query, or to another place in this query's history."""


class FenceLost(FenceError):
    """There is no fence although the query has written before."""
