"""The default lists that all messages of a class share must stay as they are."""

from __future__ import annotations

from typing import Any

from fleetlog.wire import messages
from fleetlog.wire.apis import APIS


def assert_defaults_untouched() -> None:
    """Fail if one of the library's shared default lists was changed."""

    def walk(field: Any, path: str) -> None:
        if field.is_array():
            assert not field.default, f"the shared default of {path} was changed"
        for child in (field.fields or {}).values() if field.is_struct() or field.is_struct_array() else ():
            walk(child, f"{path}.{child.name}")

    for cls in [kind(key) for key in APIS for kind in (messages.request_class, messages.response_class)]:
        for field in cls._struct.fields.values():
            walk(field, f"{cls.__name__}.{field.name}")
