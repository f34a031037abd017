"""A hook of mkdocs: addresses from pyproject.toml, pictures from screenshots/, and links to files beside docs/ lead to the repository.

A link to a file that does not exist is a warning, and so an error of ``mkdocs build --strict``.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<=\]\()((?:\.\./)+)([^)#\s]+)")  # ](../SECURITY.md
log = logging.getLogger("mkdocs.plugins.gputop")


def addresses() -> dict[str, str]:
    """``[project.urls]`` of pyproject.toml: name -> address."""
    table = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.urls]\n")[2].partition("\n[")[0]
    return dict(re.findall(r'^(\w+) = "([^"]+)"', table, re.MULTILINE))


def on_config(config: Any) -> Any:
    """Where the site and its source stand."""
    config.site_url, config.repo_url = addresses()["Documentation"], addresses()["Source"]
    config.repo_name = addresses()["Source"].partition("github.com/")[2]  # in the header of each page
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures, as screenshots/NAME."""
    for path in sorted((ROOT / "screenshots").rglob("*.svg")):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to pictures stay in the site, others out of docs/ lead to the repository."""
    depth = page.file.src_path.count("/")

    def outside(found: re.Match[str]) -> str:
        if found[1].count("/") <= depth:
            return found[0]  # another page
        path = found[2]
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_path, path)
        return f"{'../' * depth}{path}" if path.startswith("screenshots/") else f"{addresses()['Source']}/blob/main/{path}"

    return _LINK.sub(outside, markdown)
