"""Counts what makes a house hard to hold in the head.

python -m tools.house          prints the figures beside their goals
python -m tools.house --list modules_with_one_importer     what is counted, a line each
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("wire", "_native", "coordination", "txn", "brokers", "spark_udfs")
GENERATED = ("wire/api_keys.py", "wire/requests.py")
FILE_LINES = 1000
FUNCTION_LINES = 75


@cache
def product() -> tuple[Path, ...]:
    """The product's Python: rooms and the modules beside them, without what is generated."""
    rooms = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    beside = [*(ROOT / "fleetlog").glob("*.py"), *ROOT.glob("*fleetlog*.py")]
    return tuple(sorted(path for path in rooms + beside if name_of(path) not in GENERATED))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_of(path: Path) -> str:
    """The name that a file of a room is imported by."""
    room, *parts = path.relative_to(ROOT).with_suffix("").parts
    names = ["fleetlog", room.replace("spark_udfs", "spark"), *parts] if room in ROOMS else [room, *parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


@cache
def imported_by(path: Path) -> frozenset[str]:
    """Full names of the modules that a file imports, and of what it imports from them, which may be modules."""
    name = module_of(path).split(".")
    package = name if path.name == "__init__.py" else name[:-1]
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def modules_with_one_importer() -> Iterator[str]:
    """Modules of the brokers that a single other module of the product imports."""
    importers = defaultdict(set)
    for path in product():
        for name in imported_by(path):
            importers[name].add(path)
    for path in product():
        if path.name != "__init__.py" and name_of(path).startswith("brokers/"):
            others = importers[module_of(path)] - {path}
            if len(others) == 1:
                yield f"{name_of(path)} <- {name_of(others.pop())}"


def classes_with_a_namesake() -> Iterator[str]:
    """Public classes at the top of a module whose name another module defines, too."""
    places = defaultdict(list)
    for path in product():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))
    for name, files in sorted(places.items()):
        if len(files) > 1:
            yield f"{name}: {', '.join(files)}"


def long_files_of_several_classes() -> Iterator[str]:
    for path in product():
        lines = path.read_text().count("\n")
        if lines > FILE_LINES and sum(isinstance(node, ast.ClassDef) for node in tree_of(path).body) > 1:
            yield f"{name_of(path)}: {lines}"


def long_functions() -> Iterator[str]:
    for path in product():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{name_of(path)}:{node.lineno} {node.name}: {lines}"


def assignments_of_found() -> Iterator[str]:
    """Where a variable is called ``found``, which says nothing of what it holds."""
    for path in product():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "found":
                yield f"{name_of(path)}:{node.lineno}"


def protocols_of_one() -> Iterator[str]:
    """Protocols that a single class implements, none of the tests': as far as its methods' names say."""
    classes = defaultdict(set)
    for path in (*product(), *sorted((ROOT / "tests").rglob("*.py"))):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not _is_protocol(node):
                classes[name_of(path), node.name] = {n.name for n in node.body if hasattr(n, "name")} | {
                    target.attr
                    for part in ast.walk(node)
                    if isinstance(part, ast.Assign | ast.AnnAssign)
                    for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
                    if isinstance(target, ast.Attribute)
                }
    for path in product():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and _is_protocol(node):
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
                implementers = [where for where, names in classes.items() if methods and methods <= names]
                if len(implementers) == 1 and not implementers[0][0].startswith("tests/"):
                    yield f"{name_of(path)} {node.name} <- {'/'.join(implementers[0])}"


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def files_that_name_an_api() -> Iterator[str]:
    """For each API the files that name it by its constant, outside of wire."""
    keys = re.findall(r"^([A-Z_]+)\s*(?::.*?)?=", (ROOT / "wire" / "api_keys.py").read_text(), re.MULTILINE)
    naming = defaultdict(list)
    for path in product():
        if not name_of(path).startswith("wire/"):
            for key in sorted(set(re.findall(r"\bapi_keys\.([A-Z_]+)\b", path.read_text()))):
                naming[key].append(name_of(path))
    for key in keys:
        for name in naming[key][1:]:
            yield f"{key}: {name}"


def words_of_the_longest_passage() -> Iterator[str]:
    """Words of the longest paragraph or item of INVARIANTS.md, one line a word."""
    text = (ROOT / "docs" / "INVARIANTS.md").read_text()
    passages = re.split(r"\n\s*\n|\n(?=\s*(?:\d+[a-z]?\.|[-*|]) )", text)
    yield from max((passage.split() for passage in passages), key=len)


def rooms_by_their_bare_names() -> Iterator[str]:
    """Imports of a room as a package of its own instead of one of fleetlog's."""
    for path in product():
        for name in sorted({name.split(".")[0] for name in imported_by(path)} & set(ROOMS)):
            yield f"{name_of(path)}: {name}"


def lines_of_the_product() -> Iterator[str]:
    for path in product():
        yield from [name_of(path)] * path.read_text().count("\n")


def private_accesses_of_tests() -> Iterator[str]:
    """Where a test reaches for a name of another object that begins with an underscore, but for a NamedTuple's own."""
    of_tuples = ("_replace", "_make", "_asdict", "_fields")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and not _is_own(node.value):
                if node.attr in of_tuples:
                    continue
                yield f"{name_of(path)}:{node.lineno} {node.attr}"


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


GOALS: dict[Callable[[], Iterator[str]], int] = {
    modules_with_one_importer: 60,
    classes_with_a_namesake: 3,
    long_files_of_several_classes: 3,
    long_functions: 0,
    assignments_of_found: 20,
    protocols_of_one: 0,
    files_that_name_an_api: 0,
    words_of_the_longest_passage: 80,
    rooms_by_their_bare_names: 0,
    lines_of_the_product: 80_862,
    private_accesses_of_tests: 187,
}
"""What each figure is to be at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", choices=[counter.__name__ for counter in GOALS], help="what a figure counts")
    wanted = parser.parse_args().list
    for counter, goal in GOALS.items():
        if wanted == counter.__name__:
            for line, times in Counter(counter()).items():
                print(line if times == 1 else f"{times:6} {line}")
        elif not wanted:
            print(f"{counter.__name__.replace('_', ' '):34} {len(list(counter())):6}  goal {goal:6}")


if __name__ == "__main__":
    main()
