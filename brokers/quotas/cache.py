"""Client quotas in ZooKeeper: taken from what is followed (``client_configs``), and written.

A write is one multi of the entity's znode and an entry of the list of changes. Users' znodes also hold SCRAM
credentials, which stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleetlog.brokers.documents import BadDocument
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.client_configs import Configs, decode_entity
from fleetlog.brokers.metadata.config_changes import CHANGES, change_notice
from fleetlog.brokers.metadata.loading import read_or_none
from fleetlog.brokers.quotas.entities import (
    QuotaAlteration,
    QuotaRequestRefused,
    altered_config,
    entity_at,
    entity_path,
    quotas_from,
)
from fleetlog.brokers.quotas.image import Entity, QuotaImage
from fleetlog.coordination.store import Create, MultiFailed, Operation, SetData, Store, UnknownOutcome
from fleetlog.coordination.tree import ensure
from fleetlog.wire.errors import ErrorCode

_ATTEMPTS: Final = 20
_RETRY_S: Final = 0.05

logger = logging.getLogger(__name__)


class QuotaCache:
    """The quotas in force. ``on_change`` functions are called with each new image.

    ``values`` are those of an entity as they were set, by name; the image has them in thousandths.
    """

    def __init__(self) -> None:
        self.image = QuotaImage()
        self.values: dict[Entity, dict[str, float]] = {}
        self.on_change: list[Callable[[QuotaImage], None]] = []

    def take(self, configs: Configs, whole: bool) -> None:
        """Entities that changed; ``whole``: these are all. One that cannot be read keeps its quotas."""
        before = self.image.entities
        entities: dict[Entity, Mapping[str, int]] = {} if whole else dict(before)
        values = {} if whole else self.values
        for path, config in configs.items():
            try:
                entity = entity_at(path)
            except BadDocument as problem:
                logger.warning("a quota is left out: %s", problem)
                continue
            try:
                quotas: Mapping[str, int] = quotas_from(path, config)
                known = {name: float(config[name]) for name in quotas}
            except BadDocument as problem:
                logger.warning("quotas stay as they were: %s", problem)
                quotas, known = before.get(entity, {}), self.values.get(entity, {})
            entities.pop(entity, None)
            values.pop(entity, None)
            if quotas:
                entities[entity], values[entity] = quotas, known
        self.values = values
        if entities != before:
            self.image = QuotaImage(entities, self.image.version + 1)
            for call in self.on_change:
                call(self.image)


async def write_quotas(
    store: Store, entity: Entity, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> None:
    """Alter the quotas of one entity. Raises QuotaRequestRefused, the store's exceptions, BadZnode."""
    if validate_only:
        altered_config(entity, {}, alterations)
        return
    entity_name = entity_path(entity)
    path = f"{znodes.CONFIG}/{entity_name}"
    await ensure(store, CHANGES)
    for _ in range(_ATTEMPTS):
        row = await read_or_none(store, path)
        present = {} if row is None else decode_entity(path, row[0])
        config = altered_config(entity, present, alterations)
        if config == present:
            return
        if row is None:
            await ensure(store, path.rpartition("/")[0])
        data = znodes.encode_config(config)
        write: Operation = Create(path, data) if row is None else SetData(path, data, row[1])
        try:
            await store.multi([write, change_notice(entity_name)])
        except (MultiFailed, UnknownOutcome):  # another writer was first, or the next read decides
            await asyncio.sleep(_RETRY_S)
            continue
        return
    raise QuotaRequestRefused(ErrorCode.REQUEST_TIMED_OUT, "The configuration kept changing; try again")
