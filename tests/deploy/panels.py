"""What the panels of the dashboards ask for, and what a Prometheus that watched a fleet has of it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring" / "dashboards"
VALUES = {"$__rate_interval": "1m", "$instance": ".*", "$topic": ".*"}
"""What Grafana puts in the place of variables, where nothing is chosen."""
POINTS = 500


def dashboards() -> list[dict[str, Any]]:
    """The dashboards as Grafana reads them."""
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


def filled(expression: str) -> str:
    """The expression as Grafana sends it. Raises KeyError if it has an unknown variable."""
    return re.sub(r"\$\w+", lambda found: VALUES[found[0]], expression)


def blank_panels(address: str, since_s: float) -> list[str]:
    """The lines of panels for which the Prometheus at ``address`` has had no series since then, in UNIX seconds.

    Raises HTTPError where it does not take an expression.
    """
    now_s = time.time()
    blank = []
    for one in dashboards():
        for panel in one["panels"]:
            for target in panel["targets"]:
                asked = {"query": filled(target["expr"]), "start": since_s, "end": now_s,
                         "step": max(1.0, (now_s - since_s) / POINTS)}  # fmt: skip
                with urlopen(f"{address}/api/v1/query_range?{urlencode(asked)}", timeout=60) as answer:
                    if not json.load(answer)["data"]["result"]:
                        blank.append(f"{one['title']}, {panel['title']}, {target['refId']}: {target['expr']}")
    return blank
