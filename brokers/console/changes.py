"""What the console changes: each change is one command, shown before it is performed."""

from __future__ import annotations

import random
import re
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.output import count_text, heard_warnings
from fleetlog.brokers.cli.users import MECHANISMS
from fleetlog.brokers.console.asking import NAME_BYTES_MAX, PageError
from fleetlog.brokers.console.commands import CommandLine
from fleetlog.brokers.console.masking import Masks
from fleetlog.brokers.setting_kinds import secret

VALUE_CHARS_MAX: Final = 100_000
"""A command line takes no longer argument, and the command that is shown must do the same."""
RESETS: Final = ("to-earliest", "to-latest", "to-offset", "to-datetime", "by-duration", "shift-by")

PICKED: Final = "topic:"
"""The names of a list's fields begin with it."""

Form = Mapping[str, str]


class PlannedChange(NamedTuple):
    """A change to be confirmed. ``preview`` is the command that shows what it would do, if there is one.

    ``shown`` makes a row of its answer shorter. ``destroys``: something is gone then that no other change brings back;
    its button is red. ``asks_password``: the question has a field for one, which stands nowhere else.
    """

    title: str
    command: CommandLine
    back: str
    preview: CommandLine | None = None
    warning: str = ""
    destroys: bool = False
    shown: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    asks_password: bool = False


def _needed(form: Form, name: str) -> str:
    return _bounded(form.get(name, "").strip(), name)


def _exact(form: Form, name: str) -> str:
    """A name that a client chose: without the blanks around it, it is another client's."""
    return _bounded(form.get(name, ""), name)


def _bounded(text: str, name: str) -> str:
    if not text:
        raise PageError(400, f"{name.replace('_', ' ')} is missing")
    if len(text.encode()) > NAME_BYTES_MAX:
        raise PageError(400, f"{name.replace('_', ' ')} may have {NAME_BYTES_MAX} bytes")
    return text


def _pairs(text: str, option: str) -> tuple[str, ...]:
    return tuple(f"--{option}={line.strip()}" for line in text.splitlines() if line.strip())


def _option(form: Form, field: str, option: str) -> tuple[str, ...]:
    text = form.get(field, "").strip()
    return (f"--{option}={text}",) if text else ()


def _create_topic(form: Form) -> PlannedChange:
    name = _needed(form, "topic")
    options = _option(form, "partitions", "partitions") + _option(form, "replication", "replication-factor")
    command = CommandLine("topics", "create", options + _pairs(form.get("configs", ""), "config"), (name,))
    return PlannedChange(f"Create the topic {name}", command, f"/topics/{quote(name, '')}", command.also("--dry-run"))


def _alter_topic(form: Form) -> PlannedChange:
    """One, or those that were picked from the list."""
    names = _topics(form)
    options = _option(form, "partitions", "partitions") + _pairs(form.get("configs", ""), "set")
    options += _pairs(form.get("unset", ""), "unset") + _setting(form)
    command = CommandLine("topics", "alter", options, names)
    warning = "More partitions: keys move to other partitions, and partitions cannot be taken away again."
    return PlannedChange(
        f"Change the topic {names[0]}" if len(names) == 1 else f"Change {len(names)} topics", command,
        f"/topics/{quote(names[0], '')}" if "topic" in form else "/topics", command.also("--dry-run"),
        warning if form.get("partitions", "").strip() else "", shown=_altered,
    )  # fmt: skip


def _topics(form: Form) -> tuple[str, ...]:
    """The topic of the form, or those that were picked from the list, each by a field of its own."""
    names = tuple(sorted(name.removeprefix(PICKED) for name in form if name.startswith(PICKED)))
    if "topic" in form:
        names = (_needed(form, "topic"),)
    if not names:
        raise PageError(400, "no topic is picked")
    return names


def _setting(form: Form) -> tuple[str, ...]:
    """One setting by its name and value; without ``default`` in the form's ``to`` it is set, else unset."""
    if "setting" not in form:
        return ()
    name = _needed(form, "setting")
    return (f"--unset={name}",) if form.get("to") == "default" else (f"--set={name}={form.get('value', '').strip()}",)


def _altered(row: dict[str, Any]) -> dict[str, Any]:
    now = row.get("now", {})
    changes = [f"{name}: {now.get(name)} → {value}" for name, value in row["set"].items()]
    changes += [f"{name}: {now.get(name)} → its default" for name in row["unset"]]
    changes += [count_text(row["partitions"], "partition")] if row.get("partitions") else []
    return {**{kind: row[kind] for kind in ("topic", "group") if kind in row}, "changes": changes}


def _alter_broker(form: Form) -> PlannedChange:
    """A setting of one broker, or of all, while they run."""
    number, setting, everywhere = _needed(form, "broker"), _needed(form, "setting"), form.get("scope") == "all"
    if secret(setting):
        raise PageError(400, f"{setting} is a secret: set it by fleetlog cluster config set, which shows it to nobody")
    where = () if everywhere else (f"--broker={number}",)
    options = (f"--unset={setting}",) if form.get("to") == "default" else ()
    names = () if options else (f"{setting}={form.get('value', '').strip()}",)
    command = CommandLine("cluster", "config set", (*where, *options), names)
    return PlannedChange(
        f"Change {setting} of {'all brokers' if everywhere else f'broker {number}'}", command,
        f"/brokers/{quote(number, '')}", command.also("--dry-run"),
        "All brokers have the value from now on, but those that have one of their own." if everywhere else "",
    )  # fmt: skip


def _delete_topics(form: Form) -> PlannedChange:
    names = _topics(form)
    title = f"Delete the topic {names[0]}" if len(names) == 1 else f"Delete {len(names)} topics"
    return PlannedChange(
        title, CommandLine("topics", "delete", ("--yes",), names), "/topics",
        CommandLine("topics", "describe", (), names), "All of their records are gone then.", destroys=True,
        shown=_topic_shown,
    )  # fmt: skip


def _trim_topic(form: Form) -> PlannedChange:
    name, before = _needed(form, "topic"), _needed(form, "before")
    trim = CommandLine("topics", "trim", (f"--before={before}",), (name,))
    return PlannedChange(
        f"Delete the oldest records of {name}", trim.also("--yes"), f"/topics/{quote(name, '')}",
        trim.also("--dry-run"), f"The records before {before} are gone then, for all who read the topic.",
        destroys=True,
    )  # fmt: skip


def _topic_shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"], "partitions": len(row["partitions"]),
        "settings": [f"{name}={value}" for name, value in row["configs"].items()],
        "records, at most": sum(one["records"] or 0 for one in row["partitions"]),
    }  # fmt: skip


_PLACEHOLDER: Final = re.compile(r"\{\{ *([a-z_]{1,20})((?: +[^{}\s]{1,100}){0,50}) *\}\}")
PLACEHOLDERS: Final = (
    "{{uuid}}, {{now}}, {{now_ms}}, {{int 1 100}}, {{number 0 1}}, {{pick red green}}, {{name}}, {{email}}, {{city}}"
)
_NAMES: Final = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Radia", "Leslie", "Tony", "Margaret")
_CITIES: Final = ("Berlin", "Lagos", "Lima", "Oslo", "Osaka", "Porto", "Quito", "Turin", "Vienna", "Wellington")


def filled(form: Form) -> dict[str, str]:
    """The form of a record with its placeholders filled in, once: what is confirmed is what is written.

    Raises PageError.
    """
    if form.get("placeholders") != "yes":
        return dict(form)
    parts = {name: _PLACEHOLDER.sub(_placeholder, form.get(name, "")) for name in ("key", "value", "headers")}
    return {**{name: text for name, text in form.items() if name != "placeholders"}, **parts}


def _placeholder(match: re.Match[str]) -> str:
    name, words = match[1], match[2].split()
    made: dict[str, Callable[[], str]] = {
        "uuid": lambda: str(uuid.uuid4()),
        "now": lambda: datetime.now(UTC).isoformat(timespec="milliseconds"),
        "now_ms": lambda: str(time.time_ns() // 1_000_000),
        "int": lambda: str(random.randint(*(int(word) for word in words or ("0", "1000")))),
        "number": lambda: str(round(random.uniform(*(float(word) for word in words or ("0", "1"))), 3)),
        "pick": lambda: random.choice(words),
        "name": lambda: random.choice(_NAMES),
        "email": lambda: f"{random.choice(_NAMES).lower()}{random.randint(1, 999)}@example.org",
        "city": lambda: random.choice(_CITIES),
    }
    try:
        return made[name]()
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise PageError(400, f"{match[0][:60]} is no placeholder; there are {PLACEHOLDERS}") from None


def _write_record(form: Form) -> PlannedChange:
    name = _needed(form, "topic")
    options = _option(form, "partition", "partition")
    if form.get("key"):
        options += (f"--key={_lines(form['key'])}",)
    value = _lines(form.get("value", ""))
    if len(value) > VALUE_CHARS_MAX:
        raise PageError(
            413, f"a value may have {VALUE_CHARS_MAX} characters here; larger: fleetlog produce --whole-file"
        )
    options += ("--null-value",) if form.get("null_value") == "yes" else (f"--value={value}",)
    options += ("--base64",) if form.get("base64") == "yes" else ()
    for field in ("schema", "schema_message", "key_schema", "key_schema_message"):
        options += _option(form, field, field.replace("_", "-"))
    command = CommandLine("records", "write", options + _pairs(form.get("headers", ""), "header"), (name,))
    return PlannedChange(
        f"Write a record to {name}", command, _messages(name), command.also("--dry-run"),
        "Every consumer of the topic will read it. It cannot be taken back.",
    )  # fmt: skip


def _copy_record(form: Form) -> PlannedChange:
    origin = ":".join(_needed(form, name) for name in ("origin_topic", "origin_partition", "origin_offset"))
    name = _needed(form, "topic")
    options = _option(form, "partition", "partition")
    options += ("--keep-time",) if form.get("keep_time") == "yes" else ()
    command = CommandLine("records", "copy", options, (origin, name))
    return PlannedChange(
        f"Copy the record {origin} to {name}", command, _messages(name), command.also("--dry-run"),
        "Every consumer of the topic will read it. It cannot be taken back.",
    )  # fmt: skip


def _lines(text: str) -> str:
    """A field's text with the ends of lines that its author typed: browsers send others."""
    return text.replace("\r\n", "\n")


def _messages(topic: str) -> str:
    return f"/topics/{quote(topic, '')}/messages"


def _reset_group(form: Form) -> PlannedChange:
    name, how = _exact(form, "group"), _needed(form, "how")
    if how not in RESETS:
        raise PageError(400, f"how must be one of {', '.join(RESETS)}")
    options: tuple[str, ...] = (f"--{how}",)
    if how not in {"to-earliest", "to-latest"}:
        options = (f"--{how}={_needed(form, 'value')}",)
    options += _option(form, "topic", "topic")
    plan = CommandLine("groups", "reset", options, (name,))
    return PlannedChange(
        f"Move the offsets of group {name}", plan.also("--execute"), _group(name), plan,
        "The group's members must have stopped.", destroys=True,
    )  # fmt: skip


def _delete_group(form: Form) -> PlannedChange:
    name = _exact(form, "group")
    return PlannedChange(
        f"Delete the group {name}", CommandLine("groups", "delete", ("--yes",), (name,)), "/groups",
        CommandLine("groups", "describe", (), (name,)), "Its committed offsets are gone then.",
        destroys=True,
    )  # fmt: skip


def _alter_group(form: Form) -> PlannedChange:
    name, setting = _exact(form, "group"), _needed(form, "setting")
    command = CommandLine("groups", "alter", _setting(form), (name,))
    return PlannedChange(
        f"Change {setting} of group {name}", command, _group(name), command.also("--dry-run"), shown=_altered
    )


def _replay_letters(form: Form) -> PlannedChange:
    """Of one letter, or of all that came after the last replay."""
    name, letter = _needed(form, "topic"), form.get("letter", "").strip()
    plan = CommandLine("dlq", "replay", _option(form, "letter", "letter"), (name,))
    what = f"the record of letter {letter}" if letter else "the records of all letters since the last replay"
    return PlannedChange(
        f"Send {what} back", plan.also("--execute"), _letters(name), plan,
        "They are written to the topics they were in once more. It cannot be taken back.",
    )  # fmt: skip


def _purge_letters(form: Form) -> PlannedChange:
    name, before = _needed(form, "topic"), _needed(form, "before")
    purge = CommandLine("dlq", "purge", (f"--to={before}",), (name,))
    return PlannedChange(
        f"Delete dead letters in {name}", purge.also("--yes"), _letters(name), purge.also("--dry-run"),
        "They are gone then, also those that were never sent back.", destroys=True,
    )  # fmt: skip


def _letters(topic: str) -> str:
    return f"/topics/{quote(topic, '')}/letters"


def _fence_transaction(form: Form) -> PlannedChange:
    name = _exact(form, "id")
    return PlannedChange(
        f"Abort the transaction of {name}", CommandLine("transactions", "fence", ("--yes",), (name,)), "/transactions",
        CommandLine("transactions", "describe", (), (name,)),
        "What it has written is never seen by read_committed; its producer stops with an error.", destroys=True,
    )  # fmt: skip


def _reset_sink(form: Form) -> PlannedChange:
    name, query = _exact(form, "sink"), _exact(form, "query")
    options = _option(form, "new_query", "query") + _option(form, "batch", "batch")
    return PlannedChange(
        f"Move the fence of sink {name}", CommandLine("sinks", "reset", options, (name, query)), "/transactions",
        CommandLine("sinks", "describe", (), (name,)),
        "Stop the query first. Without a new query the fence is removed.", destroys=True,
    )  # fmt: skip


USER_MECHANISMS: Final = tuple(sorted(MECHANISMS))
"""Fields of the form of a user have their names."""
MADE_BYTES: Final = 18


def _set_password(form: Form) -> PlannedChange:
    name = _needed(form, "user")
    options = _option(form, "iterations", "iterations") + _mechanisms(form)
    return PlannedChange(
        f"Set the password of {name}", CommandLine("users", "add", (*options, "--password-stdin"), (name,)),
        "/security", CommandLine("users", "list", (), (name,)), asks_password=True,
    )  # fmt: skip


def _remove_user(form: Form) -> PlannedChange:
    name = _needed(form, "user")
    return PlannedChange(
        f"Remove the user {name}", CommandLine("users", "remove", (*_mechanisms(form), "--yes"), (name,)), "/security",
        CommandLine("users", "list", (), (name,)),
        "Its next login fails, and its connections end. Its ACLs and quotas stay.", destroys=True,
    )  # fmt: skip


def _mechanisms(form: Form) -> tuple[str, ...]:
    return tuple(f"--mechanism={one}" for one in USER_MECHANISMS if form.get(one) == "yes")


def _add_acl(form: Form) -> PlannedChange:
    command = CommandLine("acls", "add", _acl(form) + _operations(form))
    return PlannedChange("Add ACLs", command, "/security", command.also("--dry-run"), _denied(form))


def _set_acl(form: Form) -> PlannedChange:
    """A row of the table with other operations; with none of them the row goes."""
    operations = _operations(form)
    if not operations:
        return _remove_acl(form)
    command, principal = CommandLine("acls", "set", _acl(form) + operations), form["principal"].strip()
    return PlannedChange(
        f"Change the ACLs of {principal}", command, "/security", command.also("--dry-run"), _denied(form)
    )


def _remove_acl(form: Form) -> PlannedChange:
    options = _acl(form) + _option(form, "operation", "operation")
    return PlannedChange(
        f"Remove ACLs of {form['principal'].strip()}", CommandLine("acls", "remove", (*options, "--yes")), "/security",
        CommandLine("acls", "list", options), destroys=True,
    )  # fmt: skip


OPERATION: Final = "op:"
"""The names of a row's fields, one for each operation that is ticked, begin with it."""


def _operations(form: Form) -> tuple[str, ...]:
    ticked = sorted(name.removeprefix(OPERATION) for name in form if name.startswith(OPERATION))
    return _option(form, "operation", "operation") + tuple(f"--operation={one}" for one in ticked)


def _denied(form: Form) -> str:
    denied = _needed(form, "permission").lower() == "deny"
    return "What is denied stays denied, whatever else allows it; super users alone are not meant." if denied else ""


_RESOURCES: Final = {"topic": "topic", "group": "group", "transactionalid": "transactional-id"}


def _acl(form: Form) -> tuple[str, ...]:
    kind = re.sub("[^a-z]", "", _needed(form, "resource").lower())
    if kind == "cluster":
        options: tuple[str, ...] = ("--cluster",)
    elif kind in _RESOURCES:
        options = (f"--{_RESOURCES[kind]}={_needed(form, 'name')}", f"--pattern={form.get('pattern') or 'literal'}")
    else:
        raise PageError(400, "resource must be topic, group, transactional-id or cluster")
    permission = _needed(form, "permission").lower()
    if permission not in {"allow", "deny"}:
        raise PageError(400, "permission must be allow or deny")
    return (*options, f"--principal={_needed(form, 'principal')}", *_option(form, "host", "host"), f"--{permission}")


def _set_quota(form: Form) -> PlannedChange:
    rate = f"{_needed(form, 'quota')}={_needed(form, 'value')}"
    return PlannedChange("Set a quota", CommandLine("quotas", "set", _entity(form), (rate,)), "/security")


def _remove_quota(form: Form) -> PlannedChange:
    command = CommandLine("quotas", "remove", (*_entity(form), "--yes"), (_needed(form, "quota"),))
    preview = CommandLine("quotas", "list", _entity(form))
    return PlannedChange("Remove a quota", command, "/security", preview, destroys=True)


def _entity(form: Form) -> tuple[str, ...]:
    options: tuple[str, ...] = ()
    for field, option in (("user", "user"), ("client_id", "client-id"), ("address", "ip")):
        text = form.get(field, "").strip()
        if text:
            options += (f"--{option}-default",) if text == "<default>" else (f"--{option}={text}",)
    return options


SCHEMAS: Final = "schemas"
"""The subject of commands that ask the registry."""


def _register_schema(form: Form) -> PlannedChange:
    """With the verdict of its check, and what differs from the latest version."""
    name, text = _needed(form, "subject"), _lines(form.get("text", "")).strip()
    if not text:
        raise PageError(400, "the schema is missing")
    if len(text) > VALUE_CHARS_MAX:
        raise PageError(413, f"a schema may have {VALUE_CHARS_MAX} characters here; larger: fleetlog schemas register")
    options = (*_option(form, "kind", "type"), *_pairs(form.get("references", ""), "reference"), f"--text={text}")
    return PlannedChange(
        f"Register a schema of {name}", CommandLine(SCHEMAS, "register", options, (name,)), _schema(name),
        CommandLine(SCHEMAS, "check", options, (name,)), shown=_verdict,
    )  # fmt: skip


def _verdict(row: dict[str, Any]) -> dict[str, Any]:
    return {"compatible": row["is_compatible"], "why": row.get("messages") or [], "lines": row.get("lines", [])}


def _set_compatibility(form: Form) -> PlannedChange:
    """Of a subject, or of all that have none of their own; without a level the subject has that of all."""
    name, level = form.get("subject", "").strip(), form.get("level", "").strip()
    names = (name,) if name else ()
    options = (f"--set={level}",) if level else ("--unset",)
    return PlannedChange(
        f"Change the compatibility of {name or 'all subjects'}", CommandLine(SCHEMAS, "compatibility", options, names),
        _schema(name) if name else "/schemas", CommandLine(SCHEMAS, "compatibility", (), names),
    )  # fmt: skip


def _delete_schema(form: Form) -> PlannedChange:
    name, version = _needed(form, "subject"), _option(form, "version", "version")
    what = f"version {form['version'].strip()} of {name}" if version else f"the subject {name}"
    preview = CommandLine(SCHEMAS, "show", version, (name,)) if version else None
    return PlannedChange(
        f"Delete {what}", CommandLine(SCHEMAS, "delete", (*version, "--yes"), (name,)), "/schemas",
        preview or CommandLine(SCHEMAS, "versions", (), (name,)),
        "Records with its ids can still be read. It can be registered again.",
    )  # fmt: skip


def _schema(name: str) -> str:
    return f"/schema?name={quote(name, '')}"


CHANGES: Final[dict[str, Callable[[Form], PlannedChange]]] = {
    "create-topic": _create_topic,
    "alter-topic": _alter_topic,
    "alter-broker": _alter_broker,
    "delete-topics": _delete_topics,
    "trim-topic": _trim_topic,
    "write-record": _write_record,
    "copy-record": _copy_record,
    "reset-group": _reset_group,
    "delete-group": _delete_group,
    "alter-group": _alter_group,
    "replay-letters": _replay_letters,
    "purge-letters": _purge_letters,
    "fence-transaction": _fence_transaction,
    "reset-sink": _reset_sink,
    "register-schema": _register_schema,
    "set-compatibility": _set_compatibility,
    "delete-schema": _delete_schema,
    "set-password": _set_password,
    "remove-user": _remove_user,
    "add-acl": _add_acl,
    "set-acl": _set_acl,
    "remove-acl": _remove_acl,
    "set-quota": _set_quota,
    "remove-quota": _remove_quota,
}


def plan_change(kind: str, form: Form, masks: Masks) -> PlannedChange:
    """The change of that kind; raises PageError where the form lacks something, or would copy what is masked."""
    if kind not in CHANGES:
        raise PageError(404, "there is no such change")
    planned = CHANGES[kind](form)
    if planned.command.verb == "copy" and masks.of(planned.command.names[0].partition(":")[0]).paths:
        raise PageError(403, "fields of this topic are masked here: the console copies none of its records")
    if planned.command.verb == "replay" and masks.of(planned.command.names[0]).paths:
        raise PageError(403, "fields of this topic are masked here: the console sends none of its letters back")
    return planned


def previewed(change: PlannedChange, target: Target) -> tuple[list[dict[str, Any]], str]:
    """What the command would do, as rows, and what it and the page warn of; raises what the command refuses.

    Nothing is changed.
    """
    change.command.check()
    if change.preview is None:
        return [], change.warning
    with heard_warnings() as heard:
        preview, _ = change.preview.run(target)
    rows = preview if isinstance(preview, list) else [preview]
    rows = rows if change.shown is None else [change.shown(row) for row in rows]
    warnings = " ".join(filter(None, (change.warning, *(f"{one}." for one in heard))))
    return [row for row in rows if isinstance(row, dict)], warnings


def password_user(change: PlannedChange, mechanism: str) -> str | None:
    """Whose password by the mechanism the change sets; None: nobody's."""
    chosen = [one for one in change.command.options if one.startswith("--mechanism=")]
    return (
        change.command.names[0]
        if change.asks_password and (not chosen or f"--mechanism={mechanism}" in chosen)
        else None
    )


def performed(change: PlannedChange, target: Target, typed: Mapping[str, str]) -> tuple[str, str]:
    """What the command says, and a password that was made for it. ``typed`` has one, twice; else one is made.

    Raises what the command refuses, and PageError where the two differ.
    """
    if not change.asks_password:
        with heard_warnings() as heard:
            text = change.command.run(target)[1]
        return "; ".join(filter(None, (text, *heard))), ""
    password = typed.get("password", "")
    if password != typed.get("again", ""):
        raise PageError(400, "the two passwords are not the same; go back and type them again")
    made = "" if password else secrets.token_urlsafe(MADE_BYTES)
    return change.command.run(target, password=password or made)[1], made


def _group(name: str) -> str:
    return f"/group?name={quote(name, '')}"
