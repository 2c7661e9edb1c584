"""ApiVersions (key 18), derived from the API table and the cluster's features."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.rows import Cost, Row, api_table
from fleetlog.brokers.metadata.features import SUPPORTED
from fleetlog.wire import api_keys
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import framed
from fleetlog.wire.messages import ApiVersionsResponse, encode_response, encode_response_header
from fleetlog.wire.requests import ApiVersionsRequest

FEATURES_WITH_ZERO_VERSION = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer_to_unserved(correlation_id: int) -> list[Any]:
    """KIP-511: a request in an unknown version is answered in version 0, with the versions that are served."""
    kind = ApiVersionsResponse
    api = APIS[kind.API_KEY]
    known = kind.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
    body = encode_response(kind(version=0, error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known]), api.key, 0)
    return framed(encode_response_header(api.key, 0, correlation_id), [body])


@Row(api_keys.API_VERSIONS, cost=Cost.CHEAP, unserved=answer_to_unserved)
def handle_api_versions(request: ApiVersionsRequest, context: Context) -> Done:
    """Every row of the table that is for clients; a client whose name or version has other characters is refused.

    REBOOTSTRAP_REQUIRED where the client means another cluster or node than this one (KIP-1242).
    """
    version = context.api_version
    if version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return Done(ApiVersionsResponse(version=version, error_code=ErrorCode.INVALID_REQUEST))
    if (refusal := _means_another(request, context)) is not ErrorCode.NONE:
        return Done(ApiVersionsResponse(version=version, error_code=refusal))
    if version >= 3 and context.source is not None:
        context.source.software = request.client_software_name, request.client_software_version
    metadata = context.services.metadata
    response = ApiVersionsResponse(
        version=version,
        error_code=ErrorCode.NONE,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=row.key, min_version=row.min_version, max_version=row.max_version)
            for row in APIS.values()
            if not row.internal and _is_advertised(row.key, metadata.features)
        ],
    )
    if version >= 3:
        # a minimum of 0 makes older clients fail (KAFKA-17011): they are spared the feature
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED.items()
            if low > 0 or version >= FEATURES_WITH_ZERO_VERSION
        ]
        finalized = {name: level for name, level in metadata.features.items() if name in SUPPORTED and level > 0}
        if metadata.features_epoch >= 0:
            response.finalized_features_epoch = metadata.features_epoch
            response.finalized_features = [
                ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in sorted(finalized.items())
            ]
    return Done(response)


def _is_advertised(key: int, features: Mapping[str, int]) -> bool:
    feature = api_table()[key].feature
    return feature is None or features.get(feature, 0) >= 1


def _means_another(request: ApiVersionsRequest, context: Context) -> ErrorCode:
    if (request.cluster_id is None) != (request.node_id == -1):
        return ErrorCode.INVALID_REQUEST  # both, or neither
    services = context.services
    if request.cluster_id is None or (request.cluster_id, request.node_id) == (
        services.metadata.cluster_id, services.config.broker_id,
    ):  # fmt: skip
        return ErrorCode.NONE
    return ErrorCode.REBOOTSTRAP_REQUIRED
