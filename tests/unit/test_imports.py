"""What a start imports, and what not: each module that a process does not need costs it memory, and time before the first frame."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gputop.system.imports import without
from tests.wait import PATIENCE_S

MOST_OF_A_LOOK = 178  # modules of gputop's that `--once --json` imports without a GPU, each about 0.25 ms of CPU: one more needs a reason
_LOADED = "import sys; print(*sorted(sys.modules))"
_OF_A_GPU = ("gputop.diagnosis.causes.", "gputop.model.engines.", "gputop.sources.nvml.")


def loaded(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", f"{code}\n{_LOADED}"], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_collector_imports_no_command_line_and_no_screen() -> None:
    beginning = "import gputop.collector.__main__, gputop.system.imports as i; i.import_msgspec()"
    sources = "for one in gputop.sources.REGISTRY: importlib.import_module(one.module)"
    found = loaded(f"{beginning}\nimport gputop.collector.streaming, importlib\n{sources}")
    assert not found & {
        "argparse",
        "asyncio",
        "bz2",
        "gputop.cli",
        "gputop.commands",
        "gputop.diagnosis",
        "inspect",
        "ipaddress",
        "psutil",
        "ssl",
        "subprocess",
        "tempfile",
        "textual",
        "typing_extensions",
    }


def test_a_screen_starts_its_collector_before_it_imports_what_takes_long() -> None:
    found = loaded("import gputop.cli, gputop.stream.child; gputop.cli.make_parser('live')")
    assert not found & {"asyncio", "gputop.diagnosis", "gputop.model.frame", "msgspec", "textual", "tomllib"}


def test_a_screen_imports_no_box_and_no_source_until_somebody_asks_for_one() -> None:
    beginning = "import gputop.system.imports as i; i.import_msgspec(); import gputop.stream.session, gputop.tui.app"
    found = loaded(f"{beginning}; gputop.stream.session.Session().engine.load_causes()")
    assert not {name for name in found if name.startswith("gputop.sources")}
    boxes = {f"gputop.tui.{name}" for name in ("choice_box", "enlarge", "prove_box", "stacks_box", "trace_box", "why_box")}
    assert not found & (boxes | {"gputop.prove", "gputop.recording.reader", "gputop.stacks", "gputop.stream.moment"})


def test_a_single_look_imports_what_it_uses() -> None:
    found = loaded("import gputop.cli; assert gputop.cli.main(['--once', '--json']) == 0; import gputop.diagnosis.judge as j; j.table()")
    assert not found & {"asyncio", "gputop.sources.ebpf.source", "gputop.sources.perf.source", "inspect", "ssl", "textual"}
    own = {name for name in found if name.startswith("gputop") and not name.startswith(_OF_A_GPU)}
    assert len(own) <= MOST_OF_A_LOOK, "import where it is used what no look needs, or raise the bound"


def test_asyncio_is_imported_without_openssl() -> None:
    found = loaded("from gputop.commands.screen import import_asyncio; import_asyncio(); import asyncio.sslproto")
    assert "asyncio" in found
    assert not found & {"_ssl", "ssl"}


def test_what_was_left_out_can_be_imported_afterwards() -> None:
    assert "ssl" in loaded("from gputop.commands.screen import import_asyncio; import_asyncio(); import ssl")


def test_what_is_there_already_is_not_left_out() -> None:
    with without("json", "gputop_no_such_module"):
        import json  # noqa: F401

        with pytest.raises(ImportError):
            __import__("gputop_no_such_module")
    assert "gputop_no_such_module" not in sys.modules
