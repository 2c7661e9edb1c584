"""Users, access control lists and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from brokers.cli.client import explained, raise_for_code
from brokers.console.asking import Answer, Asking
from brokers.console.commands import listed
from brokers.security.scram import ScramMechanism
from wire.messages import request_class

DESCRIBE_USERS: Final = 50


def security_page(asking: Asking) -> Answer:
    """Users, ACLs and quotas, each as far as the user may see it."""
    return {
        "users": _section(lambda: _users(asking)),
        "acls": _section(lambda: listed(asking.target, "acls")),
        "quotas": _section(lambda: listed(asking.target, "quotas")),
    }


def _section(read: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    try:
        return {"rows": read(), "error": None}
    except click.ClickException as error:
        return {"rows": [], "error": error.format_message()}


def _users(asking: Asking) -> list[dict[str, Any]]:
    names = {one.code: one.value for one in ScramMechanism}
    with explained(asking.target, "users"):
        answer = asking.client.ask_any(request_class(DESCRIBE_USERS)(users=None))
    raise_for_code("users", answer.error_code, answer.error_message)
    return [
        {"user": row.user, "mechanism": names.get(one.mechanism, str(one.mechanism)), "iterations": one.iterations}
        for row in answer.results
        for one in row.credential_infos or ()
    ]
