"""``fleetlog debug bundle``: what whoever helps needs to see of a fleet, in one zip, without its secrets."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import kafka.errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.broker_logs import kept_lines
from fleetlog.brokers.cli.broker_metrics import metrics_address, metrics_lines
from fleetlog.brokers.cli.client import Target, admin, client_options, first_line
from fleetlog.brokers.cli.cluster_config import SOURCES, settings_of_brokers
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, count_text
from fleetlog.brokers.setting_kinds import HIDDEN, secret

if TYPE_CHECKING:
    from fleetlog.brokers.cli.diagnosis import FleetFacts

METRICS_BYTES_MAX: Final = 8_000_000
LOG_BYTES_MAX: Final = 4_000_000
TOPICS_MAX: Final = 2_000
PEM_LINES: Final = 200
"""More than keys have, where the end of one is not found."""
_BASE64: Final = re.compile(r"\s*[A-Za-z0-9+/=]{60,}\s*")
LINE_HIDDEN: Final = "[a line that may have a secret is left out]"
CONTENTS: Final = {
    "client.json": "versions of Python, fleetlog and its packages on this machine, and when it was asked",
    "fleet.json": "brokers, log directories, partitions with problems, moves: as `fleetlog cluster describe --json`",
    "doctor.json": "what `fleetlog doctor` finds, and what could not be examined",
    "settings.json": "settings of each broker and where each comes from, without secrets",
    "topics.json": "settings of topics that are not at their defaults",
    "groups.json": "groups with their states and lag",
    "transactions.json": "transactions with their states",
    "metrics/broker-N.txt": "/metrics of each broker whose admin.listener can be reached from here",
    "logs/broker-N.txt": "the newest lines of each broker's log, as `fleetlog logs tail`: none of the audit's",
    "logs/NAME": "the last 4 MB of each file that --log names",
    "errors.json": "what could not be had, and why",
}
"""Every file that a bundle may have."""


@click.group(cls=CommandGroup)
def debug() -> None:
    """Help others to help: a bundle of what a fleet shows."""


@debug.command("bundle")
@click.option("--output", "-o", "path", type=click.Path(dir_okay=False, path_type=Path),
              help="The zip.  [default: fleetlog-debug-TIME.zip]")  # fmt: skip
@click.option("--log", "logs", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="A whole log on this machine; may be repeated.")  # fmt: skip
@client_options
def make_bundle(target: Target, out: Output, path: Path | None, logs: tuple[Path, ...]) -> None:
    """Put settings, states, metrics, logs and doctor's findings into a zip, without secrets and without records.

    The zip has a README that says what is in it. Look into it before you give it away: it has names of topics, groups,
    clients and machines.
    """
    path = path or Path(time.strftime("fleetlog-debug-%Y%m%d-%H%M%S.zip", time.gmtime()))
    own = _own_secrets(target)
    files: dict[str, str] = {}
    errors: list[dict[str, str]] = []
    with admin(target) as client:
        for name, content in _collected(client, logs, target.timeout_s, errors):
            files[name] = _without(own, content)
    files["errors.json"] = _without(own, _json(errors))
    readme = ["What fleetlog debug bundle has collected:", ""]
    readme += [f"{name}  {meaning}" for name, meaning in CONTENTS.items()]
    files["README.txt"] = "\n".join([*readme, "", "Secrets are left out: of settings, and lines of logs.", ""])
    _write(path, files)
    out.done(
        f"{path}: {count_text(len(files), 'file')}; look into it before you give it away",
        {"file": str(path), "files": [*files]},
    )


def _write(path: Path, files: dict[str, str]) -> None:
    import zipfile

    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, content in sorted(files.items()):
                bundle.writestr(name, content)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None


def _collected(
    client: AdminClient, logs: tuple[Path, ...], timeout_s: float, errors: list[dict[str, str]]
) -> Iterator[tuple[str, str]]:
    """Names and contents; what fails is noted, and the rest goes on."""
    from fleetlog.brokers.cli.cluster import overview_value
    from fleetlog.brokers.cli.diagnosis import verdict
    from fleetlog.brokers.cli.doctor import gathered

    facts = gathered(client)
    steps: dict[str, Callable[[], Any]] = {
        "client.json": _client,
        "fleet.json": lambda: overview_value(facts.overview, verdict(facts)),
        "doctor.json": lambda: _doctor(facts),
        "settings.json": lambda: _settings(client),
        "topics.json": lambda: _topics(client, facts),
        "groups.json": lambda: {"groups": client.list_groups(), "lag": facts.groups},
        "transactions.json": client.list_transactions,
    }
    for name, step in steps.items():
        try:
            yield name, _json(_masked(step()))
        except (kafka_errors.KafkaError, CliError, OSError) as error:
            errors.append({"file": name, "why": first_line(error) or type(error).__name__})
    for broker in facts.overview.live_brokers():
        of_broker: dict[str, Callable[[], str]] = {
            f"metrics/broker-{broker.id}.txt": partial(_metrics, client, broker.id, broker.address or ""),
            f"logs/broker-{broker.id}.txt": partial(_log, client, broker.id, timeout_s),
        }
        for name, read in of_broker.items():
            try:
                yield name, read()
            except (kafka_errors.KafkaError, CliError, OSError, ValueError) as error:
                errors.append({"file": name, "why": first_line(error) or type(error).__name__})
    for number, log in enumerate(logs, 1):
        name = f"logs/{number}-{log.name}"
        try:
            yield name, lines_without_secrets(tail_of(log))
        except OSError as error:
            errors.append({"file": name, "why": str(error)})


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str) + "\n"


def _client() -> dict[str, Any]:
    import importlib.metadata
    import platform

    names = ("fleetlog", "kafka-python", "click", "google-re2", "kazoo", "uvloop")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return {"time": int(time.time()), "python": sys.version, "platform": platform.platform(), "packages": versions}


def _doctor(facts: FleetFacts) -> dict[str, Any]:
    from fleetlog.brokers.cli.diagnosis import Thresholds, findings_of

    findings = findings_of(facts, Thresholds())
    return {
        "findings": [one._asdict() | {"severity": one.severity.name.lower()} for one in findings],
        "not examined": [{"subject": subject, "why": why} for subject, why in facts.untold],
    }


def _settings(client: AdminClient) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "broker": broker_id,
            "value": HIDDEN if one.is_sensitive or secret(name) else one.value,
            "from": SOURCES.get(one.config_source, str(one.config_source)),
        }
        for name, by_broker in sorted(settings_of_brokers(client, (), None).items())
        for broker_id, one in sorted(by_broker.items())
    ]


def _topics(client: AdminClient, facts: FleetFacts) -> dict[str, Any]:
    names = sorted({p.topic for p in facts.overview.partitions.values()})[:TOPICS_MAX]
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    listed = client.describe_configs(resources, config_filter="modified").get("topic", {}) if resources else {}
    return {topic: {name: row.get("value") for name, row in rows.items()} for topic, rows in listed.items()}


def _metrics(client: AdminClient, broker_id: int, address: str) -> str:
    """The broker's page. Raises ValueError, OSError, CliError."""
    lines = metrics_lines(metrics_address(client, broker_id, address.rpartition(":")[0]), METRICS_BYTES_MAX)
    return b"\n".join(lines).decode(errors="replace")


def _log(client: AdminClient, broker_id: int, timeout_s: float) -> str:
    """What the broker keeps of its log. Raises CliError."""
    return lines_without_secrets("\n".join([*kept_lines(client, broker_id, timeout_s), ""]))


def tail_of(path: Path) -> str:
    """The last lines of a file, none of them cut: what says that it has a secret may stand at its begin."""
    with path.open("rb") as file:
        begin = max(0, path.stat().st_size - LOG_BYTES_MAX)
        file.seek(begin)
        data = file.read(LOG_BYTES_MAX)
    return (data.partition(b"\n")[2] if begin else data).decode(errors="replace")


# ---------------------------------------------------------------- secrets


def _masked(value: Any) -> Any:
    """The value without what looks like a secret: of a setting with such a name, or a text that looks like one."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if isinstance(one, str) and secret(str(key)) else _masked(one) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(one) for one in value]
    return HIDDEN if isinstance(value, str) and value != HIDDEN and _tells(value) else value


def _tells(text: str) -> bool:
    """Whether a text has a secret, not only the name of one: there is something behind a mark."""
    return "-----BEGIN" in text or (
        re.search(r"[=:]|\bbearer |\beyJ", text, re.IGNORECASE) is not None and secret(text)
    )


def lines_without_secrets(text: str) -> str:
    """A log without the lines that look like a secret's, among them all of a key in PEM."""
    lines, left = [], 0
    for line in text.split("\n"):
        left = PEM_LINES if "-----BEGIN" in line else left - 1
        lines.append(LINE_HIDDEN if (left > 0 and line) or _tells(line) or _BASE64.fullmatch(line) else line)
        left = 0 if "-----END" in line else left
    return "\n".join(lines)


def _own_secrets(target: Target) -> list[str]:
    """What stands in quotes, or alone, in the secret properties of this command's login."""
    values: set[str] = set()
    for name, value in target.properties.items():
        if secret(name):
            quoted = re.findall(r'password="([^"]*)"|token="([^"]*)"', value)
            values.update(one for pair in quoted for one in pair) if quoted else values.add(value)
    return sorted((one for one in values if len(one) >= 4), key=len, reverse=True)


def _without(own: list[str], text: str) -> str:
    for one in own:
        for written in (one, json.dumps(one)[1:-1]):
            text = text.replace(written, HIDDEN)
    return text
