"""UpdateFeatures (key 57, KIP-584): finalized features, by any broker."""

from __future__ import annotations

import asyncio
import logging

from fleetlog.brokers.acls.access import ALTER_CLUSTER
from fleetlog.brokers.acls.image import CLUSTER_NAME, AclOperation
from fleetlog.brokers.api.base import WRITE_SECONDS, Context, Done, in_task
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Change, Changes
from fleetlog.brokers.metadata.features import SAFE_DOWNGRADE, UPGRADE, FeatureOutcome, FeatureUpdate, update_features
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.coordination.store import UNANSWERED, StoreError
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import UpdateFeaturesFeatureUpdates, UpdateFeaturesRequest

logger = logging.getLogger(__name__)


def _update_features(request: UpdateFeaturesRequest, response: messages.UpdateFeaturesResponse) -> Changes:
    codes = {row.feature: row.error_code for row in response.results or ()}
    for row in request.feature_updates:
        error = ErrorCode(response.error_code or codes.get(row.feature, 0))
        detail = f"feature {row.feature} to level {row.max_version_level}"
        yield Change("Cluster", CLUSTER_NAME, AclOperation.ALTER, error, detail)


@Row(api_keys.UPDATE_FEATURES, (ALTER_CLUSTER,), Recorded(_update_features, ("feature_updates",)))
@in_task
async def handle_update_features(request: UpdateFeaturesRequest, context: Context) -> Done:
    """UpdateFeatures v0-v2: all updates or none, so the outcome is that of each; validated only if asked so."""
    version = context.api_version
    updates = [
        FeatureUpdate(row.feature, row.max_version_level, row.upgrade_type if version >= 1 else _type(row))
        for row in request.feature_updates
    ]
    if (denied := context.refusal(*ALTER_CLUSTER)) is not ErrorCode.NONE:
        return _answer(version, updates, FeatureOutcome(denied), top=True)
    services = context.services
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            outcome = await update_features(
                services.store, services.metadata, updates, validate_only=version >= 1 and request.validate_only
            )
    except BadZnode as error:
        logger.error("the finalized features cannot be read: %s", error)
        outcome = FeatureOutcome(
            ErrorCode.FEATURE_UPDATE_FAILED, f"{error.path} in ZooKeeper cannot be read; correct or delete it"
        )
    except (StoreError, TimeoutError) as error:
        logger.warning("the finalized features cannot be written: %s", error)
        outcome = FeatureOutcome(ErrorCode.REQUEST_TIMED_OUT, UNANSWERED)
    else:
        if outcome.error is ErrorCode.NONE and updates:
            names = ", ".join(f"{update.name}={update.level}" for update in updates)
            done = "checked" if request.validate_only else "finalized"
            logger.info("features %s by %s: %s", done, context.client_id, names)
    return _answer(version, updates, outcome, top=version >= 2)


def _type(row: UpdateFeaturesFeatureUpdates) -> int:
    return SAFE_DOWNGRADE if row.allow_downgrade else UPGRADE


def _answer(version: int, updates: list[FeatureUpdate], outcome: FeatureOutcome, *, top: bool) -> Done:
    response = messages.UpdateFeaturesResponse
    error, message = int(outcome.error), outcome.message
    if top:
        return Done(response(version=version, error_code=error, error_message=message))
    kind = response.UpdatableFeatureResult
    names = dict.fromkeys(update.name for update in updates)
    rows = [kind(feature=name, error_code=error, error_message=message) for name in names]
    return Done(response(version=version, error_message=None, results=rows))
