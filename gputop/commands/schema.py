"""Print the JSON Schema of what gputop prints as JSON. Without NAME list what there is.

Within a minor version fields are added, never taken away or changed: see docs/stability.md.
"""

from __future__ import annotations

import argparse
from typing import Any

from gputop.system.console import show, write
from gputop.system.program import DOCUMENTATION, __version__

EXAMPLES = """examples:
  gputop schema explain > explain.schema.json
"""
SCHEMAS = {
    "snapshot": "gputop --once --json, and each line of gputop --json",
    "explain": "gputop explain --json",
    "diff": "gputop diff --json",
    "diff-runs": "gputop diff --json of several runs, or with --fail-if-slower",
    "prove": "gputop prove --json",
    "stacks": "gputop stacks --json",
    "stacks-lines": "gputop stacks --duration TIME --json",
    "stacks-off-cpu": "gputop stacks --off-cpu --json",
    "loader": "gputop loader --json",
    "trace": "gputop trace --json",
    "flight": "gputop trace --flight --json",
    "doctor": "gputop doctor --json",
    "fleet": "gputop --host LIST --once --json",
    "summary": "what each node of several sends every second, in msgpack",
    "alert": "what a webhook gets",
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", choices=tuple(SCHEMAS), metavar="NAME", help=", ".join(SCHEMAS))


def run(args: argparse.Namespace) -> int:
    """Print one schema, or the list."""
    if args.name is None:
        show([f"{name:<15} {about}" for name, about in SCHEMAS.items()])
        return 0
    import json

    write(json.dumps(schema(args.name), indent=2) + "\n")
    return 0


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an output. A field with a default is required as well where the struct writes it always."""
    import msgspec

    found = msgspec.json.schema(shape(name))
    always = {kind.__name__ for kind in _structs(msgspec.inspect.type_info(shape(name)), set()) if not kind.__struct_config__.omit_defaults}
    for title, node in found["$defs"].items():
        if title in always and "properties" in node:
            required = {*node["required"], *(field for field, kind in node["properties"].items() if "default" in kind)}
            node["required"] = [field for field in node["properties"] if field in required]
    return {"$schema": DIALECT, "$id": f"{DOCUMENTATION}schema/{name}/{__version__}", **found}


def _structs(node: Any, found: set[Any]) -> set[Any]:
    """Add the structs in a type, as `msgspec.inspect` describes it, to ``found``."""
    from msgspec import Struct, inspect, structs

    if isinstance(node, inspect.StructType):
        if node.cls in found:
            return found
        found.add(node.cls)
    if isinstance(node, (list, tuple, Struct)):
        for part in structs.astuple(node) if isinstance(node, Struct) else node:
            _structs(part, found)
    return found


def shape(name: str) -> Any:
    """The type of an output."""
    from gputop.alerts.alert import Alert
    from gputop.doctor.checks import Doctor
    from gputop.findings.compared import Slower
    from gputop.findings.explanation import Diff, Explanation
    from gputop.findings.traces import Traces
    from gputop.fleet.document import Fleet
    from gputop.fleet.summary import Summary
    from gputop.loader.sweep import Sweep
    from gputop.model.flight import Flights
    from gputop.prove.running import Proof
    from gputop.stacks.document import OffCpuWaits, SampledLines, Stacks
    from gputop.stream.snapshot import Snapshot

    kinds: dict[str, Any] = {
        "explain": Explanation, "diff": Diff, "diff-runs": Slower, "prove": Proof, "stacks": Stacks, "stacks-lines": SampledLines,
        "stacks-off-cpu": OffCpuWaits, "loader": Sweep, "doctor": Doctor, "fleet": Fleet,
        "summary": Summary, "alert": Alert, "snapshot": Snapshot, "trace": Traces, "flight": Flights,
    }  # fmt: skip
    return kinds[name]
