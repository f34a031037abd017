"""What pyproject.toml cannot say: the man page and the shells' completions are made from the commands' parsers when a wheel or an editable
installation is built, and the README that PyPI shows has absolute links."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
_SHARE = {  # as the shells look for them below share/
    "bash": "bash-completion/completions/gputop", "zsh": "zsh/site-functions/_gputop", "fish": "fish/vendor_completions.d/gputop.fish",
}  # fmt: skip
_FILES = ("FILE", "FILE.prom", "OUT", "TRACE", "A", "B", "SCRIPT:NAME")  # metavars of arguments that are completed as file names
_MORE = r""".SH FILES
.TP
.I ~/.config/gputop/config.toml, /etc/gputop/config.toml
Settings: the long flags of the live view as keys, [keys] for the key map, [alerts]. \fIgputop config print\fR writes all.
.TP
.I ~/.local/state/gputop/screen.json
Time base, sort order and theme of the last screen.
.SH ENVIRONMENT
.TP
.B GPUTOP_INTERVAL, GPUTOP_NO_EBPF, \fR...
The long flags of the live view; they come before the files.
.TP
.B GPUTOP_CONFIG
A file that is read in place of both.
.SH EXIT STATUS
0 success, 1 failure, 2 wrong usage, 3 \-\-fail\-on met. record passes its command's exit code on.
"""


class BuildPy(build_py):
    """The package, the completions in its data folder, and what belongs below share/."""

    def run(self) -> None:
        """Build; an editable installation has the completions in its tree."""
        super().run()
        data = (ROOT if self.editable_mode else Path(self.build_lib)) / "gputop" / "data"
        completions, page = documents()
        for shell, text in completions.items():
            (data / f"completion.{shell}").write_text(text, encoding="utf-8")
        if self.editable_mode:
            return
        shared = {**{_SHARE[shell]: text for shell, text in completions.items()}, "man/man1/gputop.1": page}
        self.distribution.data_files = []
        for name, text in shared.items():
            path = Path(self.build_lib).parent / "share" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            self.distribution.data_files.append((f"share/{Path(name).parent}", [str(path)]))


def documents() -> tuple[dict[str, str], str]:
    """The completions by shell, and the man page."""
    sys.path.insert(0, str(ROOT))
    import shtab
    from argparse_manpage.manpage import Manpage

    from gputop.system.program import __version__

    parser = whole_parser()
    completions = {shell: shtab.complete(parser, shell) for shell in _SHARE}
    data = {
        "project_name": f"gputop {__version__}", "manual_title": "User Commands",
        "description": "what the GPU does and what the host does to it, on one time axis",
    }  # fmt: skip
    return completions, f"{str(Manpage(parser, format='pretty', _data=data)).rstrip()}\n{_MORE}"


def whole_parser() -> argparse.ArgumentParser:
    """All commands as one parser: the live view's flags, and a subparser for each command."""
    import shtab

    from gputop.cli import COMMANDS, make_parser

    live, module = make_parser("live")
    whole = argparse.ArgumentParser(prog="gputop", description=module.__doc__, parents=[live], add_help=False)
    commands = whole.add_subparsers(metavar="COMMAND")
    for name, about in COMMANDS.items():
        parser, _ = make_parser(name)
        for action in parser._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        commands.add_parser(
            name, help=about, parents=[parser], add_help=False, description=parser.description, epilog=parser.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
    return whole


def readme() -> str:
    """README.md with absolute links: PyPI has none of the files that it names."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    home = re.search(r'^Source = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert home, "pyproject.toml names no Source among its URLs"
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{home[1]}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\(|\]\()(?!https?:|#)", rf"\1{home[1]}/blob/main/", text)


if __name__ == "__main__":  # imported by tests
    setup(cmdclass={"build_py": BuildPy}, long_description=readme(), long_description_content_type="text/markdown")
