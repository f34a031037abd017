"""The shape of the package: no circle of modules, few rooms (packages), few arrows (imports) between rooms.

Counted is every import, at the top of a module, inside a function or for types alone: each one ties two modules together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_ROOMS = 38  # the latest: `traces`, what torch itself says, and inference servers
MOST_ARROWS = 196  # the collector writes streams (`recording`), everybody names `findings` next to `model`


def _module_files(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / "gputop").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports; an import from a package's ``__init__`` is one of the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else str(node.module) for name in names)


def module_graph(root: Path) -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    modules = _module_files(root)
    return {name: set(_imports(path, modules)) - {name} for name, path in modules.items()}


def room_graph(root: Path) -> dict[str, set[str]]:
    """Room -> the rooms that it imports from."""
    modules, found = _module_files(root), dict[str, set[str]]()

    def room(name: str) -> str:
        return name if modules[name].name == "__init__.py" else name.rpartition(".")[0]

    for name, imported in module_graph(root).items():
        found.setdefault(room(name), set()).update(room(other) for other in imported)
    return {name: others - {name} for name, others in found.items()}


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_an_import_inside_a_function_counts(tmp_path: Path) -> None:
    (tmp_path / "gputop" / "room").mkdir(parents=True)
    (tmp_path / "gputop" / "__init__.py").write_text("")
    (tmp_path / "gputop" / "room" / "__init__.py").write_text("")
    (tmp_path / "gputop" / "room" / "a.py").write_text("from gputop.room import b\n")
    (tmp_path / "gputop" / "room" / "b.py").write_text("def f():\n    from gputop.room.a import g\n")
    assert circles(module_graph(tmp_path)) == [{"gputop.room.a", "gputop.room.b"}]


def test_no_module_imports_itself_through_others() -> None:
    assert [sorted(circle) for circle in circles(module_graph(ROOT))] == []


def test_rooms_and_arrows_are_few() -> None:
    rooms = room_graph(ROOT)
    arrows = sorted(f"{room} -> {other}" for room, others in rooms.items() for other in others)
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)
    assert len(arrows) <= MOST_ARROWS, f"import less from other rooms, or raise MOST_ARROWS: {arrows}"
