"""A server of the Model Context Protocol: agents ask why training is slow, over this machine, recordings or hosts.

It speaks over standard input and output, or with --http on this machine alone. It only reads; `gputop skill` explains its use to an agent.
"""

from __future__ import annotations

import argparse
import os
import stat

from gputop.commands.options import RECORDER, add_sampling, address, ask_sudo, leave_root, sampling_argv
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.install import require
from gputop.system.program import return_freed_memory
from gputop.system.text import clean

PORT = 9839  # next to the exporter's
LEAST_TOKEN, MOST_TOKEN = 16, 4096  # bytes
EXAMPLES = f"""examples:
  gputop mcp                                    this machine, and any recording that is named
  gputop mcp run.gputop                         this recording, if nothing else is named
  gputop mcp --host 'node[01-16]'               these hosts, over ssh
  gputop mcp --http 127.0.0.1:{PORT} --recordings runs/
  gputop mcp --http :{PORT} --token-file ~/.config/gputop/token   beyond this machine; the file's mode is 0600
  claude mcp add gputop -- gputop mcp           how it is added to one client
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="recordings; the first is asked about where none is named")
    parser.add_argument("--recordings", metavar="DIR", help="a folder of recordings; no others may be named")
    parser.add_argument("--host", metavar="LIST", help="hosts over ssh: node01-16")
    parser.add_argument("--hosts", metavar="FILE", help="the hosts that a file lists, one a line")
    parser.add_argument("--http", nargs="?", type=address, const=("127.0.0.1", PORT), metavar="ADDRESS",
                        help=f"serve HTTP at /mcp (127.0.0.1:{PORT})")  # fmt: skip
    parser.add_argument("--token-file", metavar="FILE", help="with --http: ask for the bearer token in this file of mode 0600")
    parser.add_argument("--allow-experiments", action="store_true", help="tools that try causes or take traces: they change or slow jobs")
    add_sampling(parser)
    parser.set_defaults(job=None, pods=None)


def run(args: argparse.Namespace) -> int:
    """Serve until standard input ends, or a signal comes."""
    require("gputop mcp", "mcp", "mcp")
    token = _token(args)
    return_freed_memory()
    ask_sudo(args)
    leave_root("gputop.agents", "mcp", "mcp_types", "uvicorn", *RECORDER)  # questions are answered with the user's rights
    from gputop.agents.places import Places
    from gputop.agents.tools import EXPERIMENTS, TOOLS
    from gputop.commands.fleet import chosen_targets

    for path in args.files:
        if not os.path.isfile(path):
            raise UserError(f"there is no recording {clean(path)}")
    places = Places(args.files, args.recordings or "", chosen_targets(args), sampling_argv(args), anywhere=not args.http)
    names = [*TOOLS, *(EXPERIMENTS if args.allow_experiments else ())]
    try:
        from gputop.agents.server import Desk, serve_http, serve_stdio

        desk = Desk(places)
        if args.http:
            notify(f"serving http://{args.http[0] or '0.0.0.0'}:{args.http[1]}/mcp until Ctrl-C")
            stopped_by = serve_http(desk, names, args.http[0] or "0.0.0.0", args.http[1], token)
        else:
            stopped_by = serve_stdio(desk, names)
    finally:
        places.close()
    code = 128 + stopped_by if stopped_by else 0
    if desk.works:
        os._exit(code)  # Python would wait for the thread that still answers a question
    return code


def _token(args: argparse.Namespace) -> str:
    """The token in the file; UserError if others can read the file, or if a token is needed and none is given."""
    if args.token_file is None:
        if args.http and args.http[0] not in ("127.0.0.1", "localhost", "::1"):
            make = "(umask 077; openssl rand -hex 32 > token)"
            raise UserError(f"beyond this machine a token is needed: {make}, and --token-file token", code=2)
        if args.http and args.allow_experiments:
            raise UserError("over HTTP any user of this machine could start experiments: give --token-file", code=2)
        return ""
    if not args.http:
        raise UserError("--token-file is for --http", code=2)
    name = clean(args.token_file)
    try:
        fd = os.open(args.token_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found, data = os.fstat(fd), os.read(fd, MOST_TOKEN + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}", code=2) from None
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (os.geteuid(), 0):
        raise UserError(f"{name} may be read by others: chmod 600 {name}", code=2)
    token = data.strip()
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not all(33 <= byte < 127 for byte in token):
        raise UserError(f"{name} holds no token: one line of {LEAST_TOKEN} printable characters or more", code=2)
    return token.decode()
