"""Profiles: how to reach a fleet, by a name. They stand in one file of the user's, which nobody else may read."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fleetlog.brokers.cli.output import CliError


@dataclass(frozen=True, slots=True)
class Profile:
    """``security`` has the properties of ``--command-config``; ``console`` and ``registry`` are addresses, or empty."""

    bootstrap: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    console: str = ""
    registry: str = ""


@dataclass(slots=True)
class Profiles:
    """All of them, and the name of the one in use, or empty."""

    in_use: str
    by_name: dict[str, Profile]

    def named(self, name: str) -> Profile:
        """Raises CliError."""
        profile = self.by_name.get(name)
        if profile is None:
            hint = _hint(name, self.by_name)
            raise CliError(f"there is no profile {name!r}{hint}; `fleetlog profile list` lists them")
        return profile


FILE_NAMES = ("in_use", "profiles")


def profiles_file() -> Path:
    """Where they stand, by the XDG base directory specification."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "fleetlog" / "profiles.json"


def _hint(name: str, known: Iterable[str]) -> str:
    from fleetlog.brokers.setting_kinds import suggest  # most names are spelled right

    return suggest(name, known)


def parse_profile(data: Any) -> Profile:
    """Of its JSON. Raises ValueError that says what is wrong."""
    names = [one.name for one in fields(Profile)]
    for name, value in data.items() if isinstance(data, dict) else ():
        if name not in names:
            raise ValueError(f"{name} is none of {', '.join(names)}{_hint(name, names)}")
        if name != "security" and not isinstance(value, str):
            raise ValueError(f"{name} must be a text")
    if not isinstance(data, dict) or not data.get("bootstrap"):
        raise ValueError('a profile is an object with "bootstrap"')
    security = data.get("security", {})
    if not isinstance(security, dict) or not all(isinstance(value, str) for value in security.values()):
        raise ValueError("security must be an object of texts: properties of --command-config")
    return Profile(**data)


def read_profiles() -> Profiles:
    """Raises CliError for a file that others may read, or that is none of profiles."""
    path = profiles_file()
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read()
    except FileNotFoundError:
        return Profiles("", {})
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if mode & 0o077:
        raise CliError(f"{path} may be read by others (its mode is {mode:o}), and it may have passwords: chmod 600 it")
    try:
        return _parsed(json.loads(text))
    except ValueError as error:
        raise CliError(f"{path} is no file of profiles: {error}") from None


def _parsed(data: Any) -> Profiles:
    if not isinstance(data, dict) or not isinstance(data.get("profiles"), dict):
        raise ValueError('it is an object with "profiles", which has one of each name')
    for name in data:
        if name not in FILE_NAMES:
            raise ValueError(f"{name} is none of {', '.join(FILE_NAMES)}{_hint(name, FILE_NAMES)}")
    by_name = {}
    for name, one in data["profiles"].items():
        try:
            by_name[name] = parse_profile(one)
        except ValueError as error:
            raise ValueError(f"profile {name}: {error}") from None
    return Profiles(str(data.get("in_use", "")), by_name)


def write_profiles(profiles: Profiles) -> None:
    """All at once, so that a crash leaves the file as it was. Raises CliError."""
    path = profiles_file()
    data = {"in_use": profiles.in_use, "profiles": {name: asdict(one) for name, one in profiles.by_name.items()}}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent, prefix=".profiles-")  # of mode 0600
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(json.dumps(data, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None


def chosen_profile(name: str | None) -> Profile | None:
    """The one of that name, or the one in use if there is one. Raises CliError."""
    profiles = read_profiles()
    name = name or profiles.in_use
    return profiles.named(name) if name else None
