"""Client quotas in ZooKeeper: taken from what is followed (``client_configs``), and written.

A write is one multi of the entity's znode and an entry of the list of changes. Users' znodes also hold SCRAM
credentials, which stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from fleetlog.brokers.metadata.client_configs import Configs
from fleetlog.brokers.metadata.config_writes import Contended, alter_entity
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.quotas.entities import (
    QuotaAlteration,
    QuotaRequestRefused,
    altered_config,
    entity_at,
    entity_path,
    quotas_from,
)
from fleetlog.brokers.quotas.image import Entity, QuotaImage
from fleetlog.coordination.store import Store
from fleetlog.wire.errors import ErrorCode

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
            except BadZnode as problem:
                logger.warning("a quota is left out: %s", problem)
                continue
            try:
                quotas: Mapping[str, int] = quotas_from(path, config)
                known = {name: float(config[name]) for name in quotas}
            except BadZnode as problem:
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

    def altered(present: dict[str, str], _: bool) -> dict[str, str] | None:
        config = altered_config(entity, present, alterations)
        return None if config == present else config

    try:
        await alter_entity(store, entity_path(entity), altered)
    except Contended:
        text = "The configuration kept changing; try again"
        raise QuotaRequestRefused(ErrorCode.REQUEST_TIMED_OUT, text) from None
