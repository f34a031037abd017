"""How a column is made from rows, for most columns."""

from __future__ import annotations

from gputop.tables.derived import finite
from gputop.tables.rows import scaled
from gputop.tables.spec import Column

NS, MS = 1e-9, 1e-3  # s


def gauge(name: str, type_: str, help_: str, field: str = "") -> Column:
    return Column(name, type_, help_, lambda rows: finite(rows.gauge(field or name)) if type_ == "REAL" else rows.gauge(field or name))


def truth(name: str, help_: str) -> Column:
    """A reading that is true or false: SQLite has no such type, and Parquet takes no boolean for a number."""
    return Column(name, "INTEGER", help_, lambda rows: [None if value is None else int(value) for value in rows.gauge(name)])


def count(name: str, help_: str, field: str = "") -> Column:
    return Column(name, "INTEGER", f"{help_}, in the tick", lambda rows: rows.increment(field or name), adds_up=True)


def seconds(name: str, field: str, help_: str, unit_s: float = NS) -> Column:
    """A counter of time in units of ``unit_s``."""
    return Column(name, "REAL", f"{help_}, s in the tick", lambda rows: scaled(rows.increment(field), unit_s), adds_up=True)


def cpu_seconds(name: str, field: str, help_: str) -> Column:
    return Column(name, "REAL", f"{help_}, s since they were read last", lambda rows: scaled(rows.sum_of_increments("cpus", field), NS))


def owner(name: str, type_: str, help_: str, field: str) -> Column:
    """A field of the struct that a row stands in."""
    return Column(name, type_, help_, lambda rows: rows.owner(field))


def name(name: str, field: str, of: str) -> Column:
    return Column(name, "TEXT", f"name of the {of}", lambda rows: [rows.known.name(pid) for pid in rows.gauge(field)])
