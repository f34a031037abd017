"""The settings: where they stand, what holds, and what is wrong with them.

A flag comes before a variable (GPUTOP_INTERVAL=0.2), a variable before your file, your file before /etc/gputop/config.toml.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator

from gputop.system import config
from gputop.system.console import notify, write
from gputop.system.errors import UserError
from gputop.system.text import clean

EXAMPLES = """examples:
  $EDITOR "$(gputop config path)"
  gputop config print                     each setting: its value, where it comes from
  gputop config validate                  exit code 1 and a line for each mistake
"""
_COLUMN = 34  # where the comments of `print` begin
_TABLES = {config.KEYS: 'pause = "space,d"', config.ALERTS: 'sinks = ["bell"]'}  # and a line for users without one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=["path", "print", "validate"], metavar="path|print|validate", help="your file; all settings; what is wrong"
    )


def run(args: argparse.Namespace) -> int:
    """Print the path, the settings, or the mistakes."""
    if args.what == "path":
        write(f"{config.paths()[-1]}\n")
        return 0
    try:
        found = config.settings()
    except UserError as error:  # a file cannot be read: the rest follows from it
        notify(str(error))
        return 1
    wrong = mistakes(found)
    for one in wrong:
        notify(one)
    if args.what == "print" and not wrong:
        write("\n".join(printed(found)) + "\n")
    elif not wrong:
        write("".join(f"{clean(path)}: {'fine' if os.path.exists(path) else 'absent'}\n" for path in config.paths()))
    return int(bool(wrong))


def mistakes(found: config.Settings) -> list[str]:
    """Mistakes in the settings and variables, a line each."""
    wrong: list[str] = []
    config.apply(_parser(), True, wrong, found)
    return wrong + [said for said in (_mistake(_check_sinks, found), _mistake(_check_keys, found)) if said]


def _mistake(check: Callable[[config.Settings], None], found: config.Settings) -> str:
    """The error of a check; empty if it passes."""
    try:
        check(found)
    except UserError as error:
        return str(error)
    return ""


def _check_sinks(found: config.Settings) -> None:
    from gputop.alerts.sinks import sinks_of

    sinks_of(config.alerts(found).sinks)


def _check_keys(found: config.Settings) -> None:
    from gputop.tui.bindings import FLEET_REPLAY, LIVE, REPLAY, wrong_keys

    mapped = config.key_map(found)
    if said := next(filter(None, (wrong_keys(mapped, keys) for keys in (LIVE, REPLAY, FLEET_REPLAY))), ""):
        raise UserError(f"{config.paths()[-1]}: [keys] {said}")


def printed(found: config.Settings) -> Iterator[str]:
    """The settings as a config.toml: a line each, with its origin; unset ones are commented out, with default and meaning."""
    parser = _parser()
    held = config.in_force(parser, found)
    for name, action in config.flags(parser).items():
        if name in held:
            yield _line(name, held[name])
        elif name not in ("help", "alert"):
            default = False if action.nargs == 0 else action.default
            shown = "…" if default is None else _toml(default)
            yield f"{f'# {name} = {shown}':<{_COLUMN}}# {(action.help or '').replace('%%', '%')}"
    for table, example in _TABLES.items():
        inner = {key.partition(".")[2]: setting for key, setting in held.items() if key.startswith(f"{table}.")}
        yield f"\n[{table}]" if inner else f"\n# [{table}]\n# {example}"
        yield from (_line(name, setting) for name, setting in inner.items())


def _parser() -> argparse.ArgumentParser:
    from gputop.commands import live

    parser = argparse.ArgumentParser()
    live.add_arguments(parser)
    return parser


def _line(name: str, setting: config.ConfigValue) -> str:
    key = name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else _toml(name)
    return f"{f'{key} = {_toml(setting.value)}':<{_COLUMN}}# {clean(setting.origin)}"


def _toml(value: object) -> str:
    """A text, number, switch or list as TOML, which writes them as JSON does."""
    return json.dumps(value)
