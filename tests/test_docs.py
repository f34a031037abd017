"""Each block of code in README and docs/ is run, or read by the program that it is meant for; docs/ is a site without a broken link.

A fenced block names its language, and `LANGUAGES` says what is done with each. In a block of shell commands those of gputop run in this
process where they only read a recording (`READS`) or need nothing (`PRINTS`); the others are parsed by the real parser, and
tests/test_readme.py runs those of the README. A program of somebody else's is named in `FOREIGN`. Pages made from the code are as it is.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml

from gputop import cli, tui
from gputop.commands import config as config_command
from gputop.commands.replay import sample
from gputop.diagnosis.causes import advice
from gputop.diagnosis.facts.kinds import Kind
from gputop.findings.verdict import OWN_CAUSES, page_of
from gputop.model.frame import Mark
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.system.config import settings
from gputop.system.program import DOCUMENTATION
from gputop.tui.box import Box
from tests.wait import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOT_PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")
FOREIGN = {
    "apt", "claude", "conda", "docker", "eval", "export",
    "kubectl", "make", "pip", "pipx", "sbatch", "sudo", "uv", "uvx",  # they install, or need a cluster
    "$EDITOR", "flamegraph.pl", "jq", "source", "ssh",  # beside gputop in a pipe
}  # fmt: skip
"""Programs that are not gputop's. What they are given of gputop's is parsed."""
READS = ("diff", "explain", "export", "query", "report")
"""Commands that read a recording and end: they run here, where it is one of `FILES` or ``--sample``."""
PRINTS = ("config", "files", "schema", "skill")
"""Commands that print what gputop itself has: they run here."""
FILES = ("run.gputop", "before.gputop", "after.gputop")
"""The recordings that are there. A command that names another file is parsed."""
_BREAKS = re.compile(r"^[;|&()<>]+$")  # words between commands
_SHELL = ("for", "in", "do", "done", "if", "then", "fi", "while")  # words before a command


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """Every fenced block."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for indent, language, code in re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            yield Block(page.name, language, re.sub(f"^{indent}", "", code, flags=re.MULTILINE))


def simple_commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block as words, whatever stands between them."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.shlex(re.sub(r"(^|\s+)# .*$", "", line), posix=True, punctuation_chars=True)
        words.commenters, words.whitespace_split = "", True
        command, into_file = list[str](), False
        for word in [*words, ";"]:
            if not _BREAKS.match(word):
                command += [] if into_file else [word]
                into_file = False
                continue
            if ">" in word:  # the next word is a file's name
                into_file = True
                continue
            while command and (command[0] in _SHELL[2:] or re.match(r"\w+=", command[0])):
                command = command[1:]
            if command and command[0] not in _SHELL:
                yield command
            command = []


def ours(command: list[str]) -> list[str]:
    """What gputop is given: by this command, or by the foreign one that starts it. Empty where it starts another program."""
    if command[0] in ("gputop", "gputop-ebpf"):
        return command
    assert command[0] in FOREIGN, f"{command[0]}: a program that FOREIGN does not name"
    words = [inner for word in command[1:] for inner in (word.split() if " gputop " in f" {word} " else [word])]
    starts = [i for i in range(len(words) - 1) if words[i] in ("gputop", "gputop-ebpf") and words[i + 1] in cli.COMMANDS]
    return words[starts[0] :] if starts else []


def parse(command: list[str]) -> None:
    """As `gputop.cli` does it. UserError for what it would refuse."""
    words = command[1:]
    name = cli._name(words)
    assert name in cli.COMMANDS, f"gputop has no command {name}"
    if "--help" not in words and "--version" not in words:
        cli._parsed(cli.make_parser(name)[0], words[1:] if words[:1] == [name] else words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader might stand: recordings with the markers ``epoch 3`` and ``epoch 4``."""
    path = tmp_path_factory.mktemp("docs")
    with Recording(sample()) as recording:
        frames = list(recording.frames())
        for part, text in ((3, "epoch 3"), (2, "epoch 4")):
            frames[len(frames) // part].marks.append(Mark(frames[len(frames) // part].t_ns, text))
        for name in FILES:
            writer = Writer(str(path / name), recording.header)
            for frame in frames:
                writer.add(frame)
            writer.close()
    return path


def check_shell(block: Block, ran: list[str]) -> None:
    """Parse each command, and run it here where it only reads, once; it is put into ``ran`` then."""
    for command in simple_commands(block.text):
        words = ours(command)
        if not words:
            continue
        parse(words)
        output = words[words.index("-o") + 1] if "-o" in words else ""
        output = words[2] if output == "." else output  # gputop files NAME -o .
        files = [word for word in words[2:] if re.search(r"\.(gputop|json|db)$", word) and word != output]
        is_read = words[1:2] and words[1] in READS and ("--sample" in words or (files and set(files) <= set(FILES)))
        is_known = " ".join(words) in ran
        if block.page != "README.md" and words is command and not is_known and (is_read or (words[1:2] and words[1] in PRINTS)):
            assert cli.main(words[1:]) in (0, 3, 4), words
            ran.append(" ".join(words))
            if output:
                shutil.rmtree(output) if Path(output).is_dir() else Path(output).unlink()


def check_sql(block: Block) -> None:
    """Asked of a recording; the questions to a fleet are asked by tests/recording/test_lake.py."""
    if block.page != "fleet.md":
        assert cli.main(["query", "run.gputop", block.text]) == 0, block.text


def check_toml(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config.toml without a mistake."""
    (folder / "shown.toml").write_text(block.text)
    monkeypatch.setenv("GPUTOP_CONFIG", str(folder / "shown.toml"))
    assert config_command.mistakes(settings()) == []


def directives(text: str, ends: str) -> None:
    """Blocks in braces that are closed, of lines that end with one of ``ends``, if any."""
    open_blocks = 0
    for line in filter(None, (re.sub(r"(^|\s)#.*", "", one).strip() for one in text.splitlines())):
        assert not ends or line[-1] in ends, line
        open_blocks += line.endswith("{") - (line == "}")
        assert open_blocks >= 0, line
    assert open_blocks == 0


def ssh_settings(text: str) -> None:
    """Settings that ssh itself reads without a word, as far as it is here; tests/fleet/test_reach.py connects by them."""
    if shutil.which("ssh"):
        command = ["ssh", "-G", "-T", "-F", "/dev/stdin", "node01"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, done.stderr, "proxyjump" in done.stdout) == (0, "", True)


LANGUAGES: dict[str, Callable[[str], Any]] = {
    "sh": str, "sql": str, "toml": str,  # see the checks above
    "promql": promql_parser.parse, "python": ast.parse, "yaml": lambda text: list(yaml.safe_load_all(text)), "json": json.loads,
    "nginx": lambda text: directives(text, ";{}"), "caddy": lambda text: directives(text, ""), "ssh": ssh_settings,
    "text": str,  # what a program printed, or words
}  # fmt: skip
"""Language of a block -> what it is read by."""


def test_every_block_is_run_or_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    ran: list[str] = []
    for block in blocks():
        assert block.language in LANGUAGES, f"{block.page}: a block whose language {block.language!r} nobody reads: {block.text[:80]}"
        LANGUAGES[block.language](block.text)
        if block.language == "sh":
            check_shell(block, ran)
        elif block.language == "sql":
            check_sql(block)
        elif block.language == "toml":
            check_toml(block, folder, monkeypatch)
            monkeypatch.delenv("GPUTOP_CONFIG")
    assert len(ran) >= 10, ran


def ends_by_itself(words: list[str]) -> bool:
    """Whether a command of gputop looks at this machine and ends: it asks no other one, opens no port, and shows no screen."""
    command, flags = words[1] if len(words) > 1 else "", {word for word in words if word.startswith("-")}
    if flags & {"--host", "--hosts", "--job", "--pods", "--sudo", "--alert", "--metrics", "--bundle", "--run"}:
        return False
    return command in ("doctor", "mark", "pick") or "--once" in flags or (command in ("record", "watch") and "--" in words)


def test_every_command_that_ends_by_itself_runs(tmp_path: Path) -> None:
    """As a reader types it, each once; what has no GPU or no gputop to mark here ends with a line."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1)\n")
    found = [words for block in blocks() if block.language == "sh" for command in simple_commands(block.text) if (words := ours(command))]
    ran: dict[str, int] = {}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for words in filter(ends_by_itself, found):
        if " ".join(words) not in ran:
            (tmp_path / "run.gputop").unlink(missing_ok=True)
            done = subprocess.run(
                words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            ran[" ".join(words)] = done.returncode
            assert done.returncode in (0, 1), (words, done.stderr)
            assert "Traceback" not in done.stderr, words
            assert len(done.stderr.splitlines()) <= 2, (words, done.stderr)
    assert len(ran) >= 8, ran


def test_code_stands_in_fences_and_words_of_the_shell_are_understood() -> None:
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"(?:\A|\n\n|^#.*\n)( {4}(?![-*\d] ?).*)", text, re.MULTILINE) == [], page.name
    text = """for one in *.gputop; do gputop export "$one" --to csv; done | jq .   # words\nX=1 gputop -1 && ssh a "b c" \\\n d\n"""
    assert list(simple_commands(text)) == [
        ["gputop", "export", "$one", "--to", "csv"], ["jq", "."], ["gputop", "-1"], ["ssh", "a", "b c", "d"],
    ]  # fmt: skip


def test_commands_within_a_sentence_exist() -> None:
    """`gputop record --keep`: the command and its flags; upper-case words stand for anything."""
    wrong = []
    for page in [*PAGES, *(ROOT / name for name in ROOT_PAGES)]:
        for text in re.findall(r"`gputop((?: [^`]*)?)`", page.read_text(encoding="utf-8")):
            words = text.partition(" -- ")[0].split()
            name = cli._name(words)
            flags = [word for word in words if word.startswith("--")]
            if name.isupper():
                continue
            known = [flag for action in cli.make_parser(name)[0]._actions for flag in action.option_strings] if name in cli.COMMANDS else []
            if not known or not set(flags) <= {*known, "--help"}:
                wrong.append(f"{page.name}: gputop{text}")
    assert wrong == []


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_of_the_pages_beside_docs_lead_somewhere() -> None:
    """Those of docs/ are checked by the site."""
    broken = []
    for name in ROOT_PAGES:
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", (ROOT / name).read_text(encoding="utf-8")):
            target = ROOT / (path or name)
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{name}: {path}#{anchor}")
    assert broken == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Pages, links and anchors; without network. A page that the menu does not name has its place in it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environ = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    places = {page: page.relative_to(ROOT / "docs").with_suffix("") for page in PAGES[1:]}
    assert [str(place) for place in places.values() if place.name != "index" and f'href="{place}/"' not in front] == []
    assert next(re.finditer(r'^Documentation = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))[1] == DOCUMENTATION
    led = [page_of(cause).removeprefix(DOCUMENTATION) for cause in OWN_CAUSES if cause != "none"]
    assert [path for path in led if not path or not (tmp_path / path / "index.html").exists()] == []
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://(?!gputop-ebpf\.github\.io)[^"]+)"', front) == []
    assert (tmp_path / "screenshots/h200.svg").exists()
    assert "WARNING" not in done.stderr
    named = [re.sub(r"\s+", "", name) for name in re.findall(r'class="md-source__repository">(.*?)</div>', front, re.DOTALL)]
    assert set(named) == {"gputop-ebpf/gputop"}


def script(name: str) -> Any:
    """A module of scripts/."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_pages_made_from_the_code_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "scripts/pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: make manual writes them anew"


def test_the_page_of_keys_has_every_key_of_every_box() -> None:
    for module in pkgutil.iter_modules(tui.__path__):
        importlib.import_module(f"{tui.__name__}.{module.name}")
    named = script("pages")._BOXES.values()
    boxes, found = [Box], list[type[Box]]()
    while boxes:
        kinds = boxes.pop().__subclasses__()
        boxes += kinds
        found += [kind for kind in kinds if any(one.description for one in kind.__dict__.get("BINDINGS", ()) if one.action != "dismiss")]
    assert found
    assert [kind.__name__ for kind in found if not any(issubclass(one, kind) for one in named)] == []


def test_a_cause_has_a_page_with_all_parts() -> None:
    for cause in OWN_CAUSES:
        if cause != "none":
            text = (ROOT / f"docs/causes/{cause}.md").read_text(encoding="utf-8")
            heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
            assert heads == ["How it looks", "Evidence", "What to do", "Prove it", "What looks alike"], cause
            assert [head for head in heads if len(text.partition(f"## {head}\n")[2].partition("\n## ")[0].split()) < 15] == [], cause


def test_a_cause_without_words_for_its_page_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    causes = script("causes")
    monkeypatch.setattr(causes, "NAMES", (*causes.NAMES, "new-cause"))
    causes.prose.cache_clear()
    with pytest.raises(SystemExit, match="new-cause"):
        causes.prose()


def test_a_program_advice_of_its_own_has_a_row() -> None:
    """Each kind of program with other words than any program's stands on the page of a cause that reads them."""
    page = (ROOT / "docs/causes/too-few-workers.md").read_text(encoding="utf-8")
    for kind, ways in advice.LOADING.items():
        differs = ways.more != advice.LOADING[Kind.UNKNOWN].more
        assert (f"| {kind.value} | " in page) == differs, kind
        assert all(hint.text.replace("{:d}", "N") in page for hint in ways.more), kind


def test_the_repository_has_one_name_everywhere() -> None:
    """Wherever an address of gputop's own stands, it is that of pyproject.toml, or lies below it."""
    table = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    source, site = (re.search(rf'^{name} = "([^"]+)"', table, re.MULTILINE)[1] for name in ("Source", "Documentation"))  # type: ignore[index]
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout.split("\n")
    files = [ROOT / name for name in listed if re.search(r"\.(py|md|toml|ya?ml|json|service|timer|html|js|sh)$", name)]
    own = re.compile(r"https?://(?:github\.com/[\w.-]*gputop[\w.-]*|[\w.-]*gputop[\w.-]*\.github\.io)[\w./-]*")
    found = [(path.name, address) for path in files if path.is_file() for address in own.findall(path.read_text(encoding="utf-8"))]
    assert len(found) > 20
    assert [one for one in found if not re.match(rf"{re.escape(source)}(/|\.git|$)|{re.escape(site)}", one[1])] == []


def test_a_link_to_nowhere_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    hook = script("site_hook")
    page = type("Page", (), {"file": type("File", (), {"src_path": "a.md"})})
    text = hook.on_page_markdown("[a](../SECURITY.md#x), ![b](../screenshots/h200.svg), [c](b.md)", page)
    assert text == f"[a]({hook.addresses()['Source']}/blob/main/SECURITY.md#x), ![b](screenshots/h200.svg), [c](b.md)"
    inner = type("Page", (), {"file": type("File", (), {"src_path": "causes/a.md"})})
    text = hook.on_page_markdown("[a](../../SECURITY.md), ![b](../../screenshots/h200.svg), [c](../b.md)", inner)
    assert text == f"[a]({hook.addresses()['Source']}/blob/main/SECURITY.md), ![b](../screenshots/h200.svg), [c](../b.md)"
    assert not caplog.records
    hook.on_page_markdown("[a](../NOTHING.md)", page)
    assert "NOTHING.md, which does not exist" in caplog.text
