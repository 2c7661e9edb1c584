"""Which quota governs: against a naive model, which notices when the order is another one."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.quotas.image import DEFAULT, PRODUCER_BYTE_RATE, Bucket, Entity, Governing, QuotaImage

NAMES = ("a", "b", "<default>", "")
USERS = st.sampled_from([None, DEFAULT, *NAMES])
ENTITIES = st.builds(Entity, USERS, USERS, st.none()).filter(lambda entity: entity != Entity())
SETS = st.dictionaries(ENTITIES, st.integers(1, 10**9), max_size=12)
Govern = Callable[[QuotaImage, str, str], Governing | None]


def naive(quotas: dict[Entity, int], user: str, client_id: str) -> Governing | None:
    """Of all that match, the one whose user counts for most, then the one whose client id does: the name, all, none."""

    def weight(entity: Entity) -> tuple[int, int]:
        by_user, by_client = (
            2 if name == asked else 1 if name is DEFAULT else 0
            for name, asked in ((entity.user, user), (entity.client_id, client_id))
        )
        return by_user, by_client

    matching = [
        entity
        for entity in quotas
        if entity.user in (user, DEFAULT, None) and entity.client_id in (client_id, DEFAULT, None)
    ]
    if not matching:
        return None
    best = max(matching, key=weight)
    bucket = Bucket(user if best.user is not None else None, client_id if best.client_id is not None else None)
    return Governing(quotas[best], bucket)


def disagreement(govern: Govern) -> None:
    @settings(max_examples=400, database=None)
    @given(SETS, st.sampled_from(NAMES), st.sampled_from(NAMES))
    def compare(quotas: dict[Entity, int], user: str, client_id: str) -> None:
        image = QuotaImage({entity: {PRODUCER_BYTE_RATE.name: rate} for entity, rate in quotas.items()})
        assert govern(image, user, client_id) == naive(quotas, user, client_id)

    compare()


def as_built(image: QuotaImage, user: str, client_id: str) -> Governing | None:
    return image.governing(PRODUCER_BYTE_RATE, user, client_id)


def test_the_image_decides_as_the_model() -> None:
    disagreement(as_built)


def clients_before_users(image: QuotaImage, user: str, client_id: str) -> Governing | None:
    turned = {Entity(one.client_id, one.user): rates for one, rates in image.entities.items()}
    found = as_built(QuotaImage(turned), client_id, user)
    return found and Governing(found.rate_milli, Bucket(found.bucket.client_id, found.bucket.user))


def defaults_first(image: QuotaImage, user: str, client_id: str) -> Governing | None:
    for asked in ((user, "none such"), ("none such", client_id)):
        found = as_built(image, *asked)
        if found is not None:
            return found
    return as_built(image, user, client_id)


def one_bucket_for_all(image: QuotaImage, user: str, client_id: str) -> Governing | None:
    found = as_built(image, user, client_id)
    return found and Governing(found.rate_milli, Bucket(None, None))


def defaults_by_name(image: QuotaImage, user: str, client_id: str) -> Governing | None:
    with patch("fleetlog.brokers.quotas.image.DEFAULT", "<default>"):
        return as_built(image, user, client_id)


@pytest.mark.parametrize("wrong", [clients_before_users, defaults_first, one_bucket_for_all, defaults_by_name])
def test_the_model_notices_another_order(wrong: Govern) -> None:
    with pytest.raises(AssertionError):
        disagreement(wrong)
