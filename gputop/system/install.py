"""Describes how this gputop was installed: the path of its command, and the line that adds a package to it here."""

from __future__ import annotations

import os
import re
import shlex
import sys

from gputop.system.errors import UserError
from gputop.system.program import FOLDER

NAME = "gputop-ebpf"  # the distribution
OWN_NODE, FROM_HERE = f"pipx run {NAME}", "gputop --host NODE"  # commands that show one's own node, there and from another machine
_COMMANDS = ("gputop", NAME)
_REQUIREMENT = re.compile(r'name\s*=\s*"([^"]+)"|extras\s*=\s*\[([^\]]*)\]')  # in uv's receipt


def program() -> str:
    """The absolute path of the command by which this gputop is started, also by others and later."""
    from shutil import which
    from sysconfig import get_path

    begun = sys.argv[0] if os.path.basename(sys.argv[0]) in _COMMANDS else ""
    if begun and (found := which(os.path.abspath(begun) if os.sep in begun else begun)):
        return os.path.abspath(found)
    for folder in (os.path.dirname(sys.executable), get_path("scripts")):
        if found := which(os.path.join(folder, _COMMANDS[0])):
            return os.path.abspath(found)
    return os.path.join(os.path.dirname(sys.executable), _COMMANDS[0])


def in_cache(prefix: str = sys.prefix) -> bool:
    """True if ``prefix`` is an environment that uvx makes for one run, in uv's cache."""
    return re.search(r"/(archive|environments)-v\d+/", f"{prefix}/") is not None


def require(command: str, module: str, extra: str) -> None:
    """Raise UserError if an optional package is not installed. ``command``: what was asked, such as ``gputop mcp``."""
    from importlib.util import find_spec

    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise missing(command, extra)


def missing(command: str, extra: str) -> UserError:
    """The error for what needs the packages of an extra."""
    return UserError(f"{command} needs packages that are not installed: {how_to_add(extra)}")


def how_to_add(extra: str, prefix: str = sys.prefix) -> str:
    """Shell command that installs the packages of an extra into this gputop's environment."""
    packages = _packages(extra)
    quoted = shlex.join(packages)
    if os.path.exists(os.path.join(prefix, "pipx_metadata.json")):
        is_global = prefix.startswith(f"{os.environ.get('PIPX_GLOBAL_HOME') or '/opt/pipx'}/")
        inject = "sudo pipx inject --global" if is_global else "pipx inject"
        return f"{inject} {shlex.quote(os.path.basename(prefix))} {quoted}"
    if in_cache(prefix):
        return f"uvx {_with(packages)} {shlex.join([NAME, *sys.argv[1:2]])}"
    if os.path.exists(os.path.join(prefix, "uv-receipt.toml")):
        source, others = _received(os.path.join(prefix, "uv-receipt.toml"))
        return f"uv tool install {shlex.quote(source)} {_with([*others, *packages])}"
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        return f"conda install --prefix {shlex.quote(prefix)} --channel conda-forge {quoted}"
    is_own = prefix != sys.base_prefix and not prefix.startswith("/usr/")
    if not os.access(os.path.dirname(FOLDER), os.W_OK) or (not is_own and (prefix != sys.base_prefix or _is_managed())):
        # A distribution's Python, its package of gputop, or another user's environment: pip must not write there.
        return f"pipx install {shlex.quote(f'{NAME}[{extra}]')}"
    return f"{_pip()} {quoted}"


def _pip() -> str:
    """The line that installs packages into this environment, but for them; by uv where it has no pip."""
    from importlib.util import find_spec

    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _with(packages: list[str]) -> str:
    return " ".join(f"--with {shlex.quote(one)}" for one in dict.fromkeys(packages))


def _received(path: str) -> tuple[str, list[str]]:
    """(gputop with its extras, the other packages) that a uv tool was installed with: a new installation forgets what is not named."""
    with open(path, encoding="utf-8", errors="replace") as file:
        requirements = file.read(1 << 16).partition("requirements")[2].partition("\nentrypoints")[0]
    source, others, last = NAME, [], ""
    for name, extras in _REQUIREMENT.findall(requirements):
        if name:
            last = name
            if name != NAME:
                others.append(name)
        elif last == NAME:
            source = f"{NAME}[{','.join(re.findall(r'[a-z0-9-]+', extras))}]"
    return source, others


def _is_managed() -> bool:
    """True if the distribution forbids pip to install for all (PEP 668)."""
    from sysconfig import get_path

    return os.path.exists(os.path.join(get_path("stdlib"), "EXTERNALLY-MANAGED"))


def _packages(extra: str) -> list[str]:
    """Packages that the extra requires, by the metadata of this distribution; the extra itself without metadata, as in a source tree."""
    from importlib import metadata

    try:
        lines = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        lines = []
    ends = (f"extra == '{extra}'", f'extra == "{extra}"')
    found = [line.partition(";")[0].strip() for line in lines if line.rstrip().endswith(ends)]
    return found or [f"{NAME}[{extra}]"]
