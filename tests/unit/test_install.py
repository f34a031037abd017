"""The line that adds a package to this gputop, by how it was installed, and the path by which others start it."""

from __future__ import annotations

import os
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gputop import cli
from gputop.system import install
from gputop.system.errors import UserError

MCP = [line.partition(";")[0].strip() for line in metadata.requires("gputop-ebpf") or [] if line.endswith('"mcp"')]
UV_RECEIPT = """[tool]
requirements = [{ name = "gputop-ebpf", extras = ["prometheus", "otlp"] }, { name = "pyarrow", specifier = ">=15" }]
entrypoints = [{ name = "gputop", install-path = "/home/ada/.local/bin/gputop", from = "gputop-ebpf" }]
"""


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of ours."""
    folder = tmp_path / "venvs" / "gputop-ebpf"
    folder.mkdir(parents=True)
    monkeypatch.setattr(install, "FOLDER", str(folder / "gputop"))
    return folder


def words(prefix: Path) -> list[str]:
    """The line as a shell reads it."""
    return shlex.split(install.how_to_add("mcp", str(prefix)))


def test_pipx_injects(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (prefix / "pipx_metadata.json").touch()
    assert words(prefix) == ["pipx", "inject", "gputop-ebpf", *MCP]
    monkeypatch.setenv("PIPX_GLOBAL_HOME", str(prefix.parent.parent))
    assert words(prefix) == ["sudo", "pipx", "inject", "--global", "gputop-ebpf", *MCP]


def test_pipx_injects_into_the_environment_that_it_named(prefix: Path) -> None:
    other = prefix.with_name("gputop-ebpf@next")
    other.mkdir()
    (other / "pipx_metadata.json").touch()
    assert words(other)[2] == "gputop-ebpf@next"


def test_a_tool_of_uv_keeps_what_it_has(prefix: Path) -> None:
    (prefix / "uv-receipt.toml").write_text(UV_RECEIPT)
    assert words(prefix) == [
        "uv", "tool", "install", "gputop-ebpf[prometheus,otlp]", "--with", "pyarrow", *(word for one in MCP for word in ("--with", one))
    ]  # fmt: skip


def test_uvx_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gputop-ebpf", "mcp", "--http"])
    assert words(tmp_path / "uv/archive-v0/3fGh") == ["uvx", "--with", MCP[0], "gputop-ebpf", "mcp"]


def test_conda_environments_get_conda_forges(prefix: Path) -> None:
    (prefix / "conda-meta").mkdir()
    assert words(prefix) == ["conda", "install", "--prefix", str(prefix), "--channel", "conda-forge", *MCP]


@pytest.mark.parametrize("has_pip", [True, False])
def test_an_environment_gets_its_own_pip(prefix: Path, monkeypatch: pytest.MonkeyPatch, has_pip: bool) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if has_pip or name != "pip" else None)
    pip = [sys.executable, "-m", "pip", "install"] if has_pip else ["uv", "pip", "install", "--python", sys.executable]
    assert words(prefix) == [*pip, *MCP]


def test_a_distributions_python_is_left_alone(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_is_managed", lambda: True)
    assert words(Path(sys.base_prefix)) == words(Path("/usr/lib/gputop")) == ["pipx", "install", "gputop-ebpf[mcp]"]
    monkeypatch.setattr(install, "_is_managed", lambda: False)
    assert words(Path(sys.base_prefix)) == [sys.executable, "-m", "pip", "install", *MCP]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert words(prefix) == ["pipx", "install", "gputop-ebpf[mcp]"]


def test_each_extra_names_its_packages() -> None:
    for extra in ("parquet", "prometheus", "otlp", "mcp"):
        assert install._packages(extra) != [f"gputop-ebpf[{extra}]"]


@pytest.mark.parametrize(
    ("module", "command", "told"),
    [("mcp", ["mcp"], "gputop mcp needs"), ("prometheus_client", ["exporter"], "gputop exporter needs"),
     ("opentelemetry.exporter.otlp.proto.http", ["exporter", "--otlp", "http://127.0.0.1:9"], "gputop exporter --otlp needs")],
)  # fmt: skip
def test_a_missing_extra_names_the_command_that_was_asked(
    module: str, command: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else find_spec(name))
    assert cli.main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert install.how_to_add({"mcp": "mcp", "prometheus_client": "prometheus"}.get(module, "otlp")) in line


def test_the_command_is_found_as_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, link = tmp_path / "venv/bin/gputop", tmp_path / "bin/gputop"
    for path in (script, link):
        path.parent.mkdir(parents=True)
    script.touch(0o755)
    link.symlink_to(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{link.parent}:{os.environ['PATH']}")
    for begun in (str(link), "bin/gputop", "gputop"):
        monkeypatch.setattr(sys, "argv", [begun])
        assert install.program() == str(link)
    monkeypatch.setattr(sys, "argv", ["/x/gputop/__main__.py"])
    assert os.path.basename(install.program()) == "gputop"
    assert os.path.isabs(install.program())


@pytest.mark.parametrize("where", ["with space/gputop", "uv/archive-v0/abc/bin/gputop"])
def test_no_unit_is_made_that_could_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    from gputop.system import shipped

    path = tmp_path / where
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setattr(shipped, "in_cache", lambda: "archive-v0" in where)
    with pytest.raises(UserError, match=r"uv tool install|cannot stand in a unit"):
        shipped.text_of("gputop-record.service")
    assert shipped.text_of("kubernetes.yaml")


def test_root_is_told_who_may_change_what_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gputop.system import shipped

    if os.geteuid() != 0:
        pytest.skip("files of two users need root")
    mine = tmp_path / "gputop"
    mine.touch(0o755)
    monkeypatch.setattr(shipped, "FOLDER", "/usr")
    assert shipped.who_may_change(str(mine)) == ""
    os.chown(mine, 54_321, 54_321)
    assert shipped.who_may_change(str(mine)) == "uid 54321"
