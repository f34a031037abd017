"""Write the man page and the shells' completions from the commands' parsers: `make manual`.

With ``--check`` nothing is written; the exit code is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gputop.cli import COMMANDS, make_parser
from gputop.system.program import __version__

ROOT = Path(__file__).resolve().parent.parent
_INTRO = """.TH GPUTOP 1 "" "gputop {version}" "User Commands"
.SH NAME
gputop \\- what the GPU does and what the host does to it, on one time axis
.SH SYNOPSIS
.B gputop
[\\fICOMMAND\\fR] [\\fIOPTIONS\\fR]
"""
_OUTRO = """.SH FILES
.TP
.I ~/.config/gputop/config.toml
Defaults: the long flags of the live view as keys, and [keys] for the key map. demo, record and replay use the flags that they have.
.TP
.I ~/.local/state/gputop/screen.json
Time base, sort order and theme of the last screen.
.SH EXIT STATUS
0 success, 1 failure, 2 wrong usage, 3 \\-\\-fail\\-on met. record passes its command's exit code on.
"""


def options(name: str) -> list[argparse.Action]:
    """The flags and arguments of a command."""
    return [action for action in make_parser(name)[0]._actions if action.help != argparse.SUPPRESS]


def flags(name: str) -> list[str]:
    """The long and short flags of a command."""
    return [flag for action in options(name) for flag in action.option_strings]


def man() -> str:
    """The man page."""
    return _INTRO.format(version=__version__) + "".join(_section(name) for name in COMMANDS) + _OUTRO


def _section(name: str) -> str:
    parser, module = make_parser(name)
    title = "gputop" if name == "live" else f"gputop {name}"
    lines = [f'.SH "{title}"', _roff((module.__doc__ or "").strip())]
    for action in options(name):
        word = ", ".join(action.option_strings) or str(action.metavar or action.dest)
        value = f" {action.metavar}" if action.option_strings and action.metavar and action.nargs != 0 else ""
        lines += [".TP", f".B {_roff(word + value)}", _roff((action.help or "").replace("%%", "%"))]
    if parser.epilog:
        lines += [".PP", ".nf", _roff(parser.epilog.rstrip()), ".fi"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())


def bash() -> str:
    """Completion for bash."""
    cases = "\n".join(f'        {name}) words="{" ".join(flags(name) + choices(name))}" ;;' for name in COMMANDS)
    return f"""# bash completion for gputop: eval "$(gputop completion bash)"
_gputop() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command=live words
    [[ $COMP_CWORD -gt 1 && ${{COMP_WORDS[1]}} != -* ]] && command=${{COMP_WORDS[1]}}
    case $command in
{cases}
    esac
    [[ $COMP_CWORD -eq 1 ]] && words+=" {" ".join(COMMANDS)}"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _gputop gputop
"""


def choices(name: str) -> list[str]:
    """The choices of a command's arguments."""
    return [str(one) for action in options(name) if not action.option_strings for one in action.choices or ()]


def zsh() -> str:
    """Completion for zsh."""
    listed = "\n".join(f"        '{name}:{_quoted(text)}'" for name, text in COMMANDS.items())
    cases = "\n".join(f"        {name}) compadd -- {' '.join(flags(name) + choices(name))} ;;" for name in COMMANDS)
    return f"""#compdef gputop
# zsh completion for gputop: eval "$(gputop completion zsh)"
_gputop() {{
    local -a commands=(
{listed}
    )
    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
        _describe command commands
        return
    fi
    local command=live
    [[ $words[2] != -* ]] && command=$words[2]
    case $command in
{cases}
    esac
    _files
}}
compdef _gputop gputop
"""


def fish() -> str:
    """Completion for fish."""
    lines = ["# fish completion for gputop: gputop completion fish | source"]
    lines += [f"complete -c gputop -n __fish_use_subcommand -a {name} -d '{_quoted(text)}'" for name, text in COMMANDS.items()]
    for name in COMMANDS:
        seen = "__fish_use_subcommand" if name == "live" else f"__fish_seen_subcommand_from {name}"
        for action in options(name):
            for flag in action.option_strings:
                kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                lines.append(f"complete -c gputop -n '{seen}' {kind} -d '{_quoted((action.help or '').replace('%%', '%'))}'")
        lines += [f"complete -c gputop -n '{seen}' -a '{' '.join(choices(name))}'"] if choices(name) else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("'", "’").replace(":", " ")


FILES = {
    "packaging/gputop.1": man, "gputop/data/completion.bash": bash, "gputop/data/completion.zsh": zsh, "gputop/data/completion.fish": fish,
}  # fmt: skip


def main(check: bool) -> int:
    """Write or check all files."""
    stale = [name for name, make in FILES.items() if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != make()]
    for name in stale if not check else ():
        (ROOT / name).write_text(FILES[name](), encoding="utf-8")
    if stale:
        print(f"{'stale' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
