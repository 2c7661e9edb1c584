"""Brings a real fleet into ten troubles, one after the other, and asks for their causes: ``python -m
tests.deploy.troubles``.

Run by hand; it takes some minutes. For each trouble it prints what ``fleetlog doctor`` says of it, and fails where the
true cause is not named by it and by the console's page, or not with the same advice.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.console.served import Served, Visitor
from tests.support.diagnosed import found_by_console, found_by_doctor, until_nothing_is_wrong
from tests.support.troubles import TROUBLES, TroubledFleet


def main() -> None:
    """Bring about all troubles, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("troubles", nargs="*", metavar="TROUBLE", help=f"default: all of {', '.join(TROUBLES)}")
    chosen = parser.parse_args().troubles or TROUBLES
    if unknown := set(chosen) - set(TROUBLES):
        parser.error(f"there is no trouble {', '.join(sorted(unknown))}; there are {', '.join(TROUBLES)}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fleetlog-troubles-") as name:
        troubled = TroubledFleet(Path(name))
        console = Served(troubled.fleet.bootstrap)
        try:
            for trouble in chosen:
                try:
                    until_nothing_is_wrong(troubled)
                    with getattr(troubled, trouble)() as sought:
                        one, others = found_by_doctor(troubled, sought)
                        shown = found_by_console(Visitor(console), sought)
                    assert shown["todo"] == one["todo"], f"the console says {shown}"
                    print(f"{trouble}: {one['severity'].upper()} {one['check']}, {one['where']}: {one['what']}")
                    print(f"    why {one['why']}\n    do  {one['todo']}")
                    for other in others:
                        print(f"    and {other['check']}, {other['where']}: {other['what']}")
                except AssertionError as error:
                    failed += 1
                    print(f"FAILED {trouble}: {error}")
                sys.stdout.flush()
        finally:
            console.close()
            troubled.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
