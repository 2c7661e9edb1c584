"""Users, access control lists and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fleetlog.brokers.cli.client import explained
from fleetlog.brokers.cli.users import users_at
from fleetlog.brokers.console.asking import Answer, Asking
from fleetlog.brokers.console.commands import listed


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
    with explained(asking.target, "users"):
        users = users_at(asking.client)
    return [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, credentials in users.items()
        for mechanism, iterations in credentials.items()
    ]
