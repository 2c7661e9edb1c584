"""Whether a task runs on compiled kernels: without them it works, at a fraction of the speed."""

from __future__ import annotations

import logging

from fleetlog._native import CHOICE, REASONS
from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.options import one_of

NATIVE_CONF = "spark.fleetlog.native"
"""Spark's setting: ``auto``, or ``required`` to fail a task whose Python has no compiled kernels."""

AUTO, REQUIRED = "auto", "required"
_PURE = "pure"

logger = logging.getLogger(__name__)
_checked = False


def check_kernels(wanted: str | None = None) -> None:
    """Warn once in this process where kernels are not compiled, with the reason. Called at the start of a task.

    ``wanted`` of None: what the task's Spark session has for NATIVE_CONF. Raises OptionError where they are required,
    and for a setting that is neither.
    """
    global _checked  # noqa: PLW0603
    chosen = one_of(AUTO, REQUIRED)(NATIVE_CONF, _of_session() if wanted is None else wanted)
    if _checked and chosen == AUTO:
        return
    _checked = True
    reasons = sorted({reason for reason in REASONS.values() if reason.startswith(_PURE)})
    if not reasons:
        return
    message = (
        f"fleetlog's kernels are not compiled in this Python ({'; '.join(reasons)}). Install a wheel that was built "
        "with a C compiler on every executor"
    )
    if chosen == REQUIRED:
        raise OptionError(f"{NATIVE_CONF}=required: {message}")
    if CHOICE != _PURE:
        logger.warning("%s: tasks take many times longer", message)


def _of_session() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty(NATIVE_CONF) if context is not None else None) or AUTO
