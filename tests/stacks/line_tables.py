"""Prints, of every function of some modules, its line table as it lies in memory and what Python itself reads from it.

Runs on every Python from 3.8 on: `python line_tables.py` gives JSON lines of (table in hex, first line, [offset, line] …).
"""

import argparse
import dis
import inspect
import json
import sys
import textwrap
import threading


def nested(code):
    yield code
    for const in code.co_consts:
        if inspect.iscode(const):
            yield from nested(const)


def lines_of(code):
    """(offset, line) at the start of each span; a line of None where it has none."""
    if hasattr(code, "co_lines"):
        return [(start, line) for start, end, line in code.co_lines() if end > start]
    return list(dis.findlinestarts(code))


for module in (argparse, dis, inspect, textwrap, threading):
    with open(module.__file__) as file:
        whole = compile(file.read(), module.__file__, "exec")
    for code in nested(whole):
        table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
        print(json.dumps([table.hex(), code.co_firstlineno, lines_of(code)]))
