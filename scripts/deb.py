"""Make a Debian package of a wheel: `make deb`.

    python scripts/deb.py dist/gputop_ebpf-0.1.0-py3-none-any.whl -o dist

The package has a virtual environment of its own in /usr/lib/gputop, for Debian lacks some dependencies: the wheel, and what it requires, as
it is installed beside the Python that runs this. So it is for that minor version of Python and this architecture. It brings the manual,
completions, a settings file that says nothing yet, and the systemd units, which it does not start.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from gputop.system.shipped import text_of

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
HOME = "usr/lib/gputop"
SITE = f"{HOME}/lib/{PYTHON}/site-packages"
_SHARED = {  # in the wheel's share/ -> in the package; Debian's zsh looks into a folder of its own
    "bash-completion/completions/gputop": "bash-completion/completions/gputop",
    "zsh/site-functions/_gputop": "zsh/vendor-completions/_gputop",
    "fish/vendor_completions.d/gputop.fish": "fish/vendor_completions.d/gputop.fish",
}
_SCRIPT = f"""#!/{HOME}/bin/python
import sys
from gputop.__main__ import main
sys.exit(main())
"""
_CONTROL = """Package: gputop-ebpf
Version: {version}
Architecture: {architecture}
Maintainer: The gputop authors <gputop-ebpf@users.noreply.github.com>
Installed-Size: {kilobytes}
Depends: {python}, libc6
Recommends: python3-bpfcc
Section: utils
Priority: optional
Homepage: {home}
Description: why training on GPUs is slow, who causes it, how to fix it
 gputop shows what the GPU does and what the host does to it on one time axis,
 and says in a sentence what the GPU waits for. eBPF probes are optional.
"""


def build(wheel: Path, folder: Path) -> Path:
    """Write the package into a folder; returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary)
        info = unpack(wheel, tree)
        for name in sorted(required(info)):
            copy_distribution(name, tree / SITE)
        make_environment(tree)
        add_files(tree, info)
        version, architecture = info["Version"], printed("dpkg", "--print-architecture")
        kilobytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) >> 10
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN/conffiles").write_text("/etc/gputop/config.toml\n")
        (tree / "DEBIAN/control").write_text(_CONTROL.format(
            version=version, architecture=architecture, kilobytes=kilobytes, python=PYTHON, home=info["Source"],
        ))  # fmt: skip
        tree.chmod(0o755)
        path = folder / f"gputop-ebpf_{version}_{architecture}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", tree, path], check=True, stdout=subprocess.DEVNULL)
    return path


def unpack(wheel: Path, tree: Path) -> dict[str, str]:
    """Put a wheel's modules and shared files in place; returns ``Version``, ``Source`` and ``Requires``, the latter a line each."""
    with zipfile.ZipFile(wheel) as packed, tempfile.TemporaryDirectory() as folder:
        packed.extractall(folder)
        (data,) = Path(folder).glob("*.data")
        share = data / "data/share"
        for name, place in _SHARED.items():
            copy(share / name, tree / "usr/share" / place)
        compress(share / "man/man1/gputop.1", tree / "usr/share/man/man1/gputop.1.gz")
        shutil.rmtree(data)
        shutil.copytree(folder, tree / SITE)
    (record,) = (tree / SITE).glob("gputop_ebpf-*.dist-info")
    found = metadata.PathDistribution(record)
    urls = dict(url.split(", ", 1) for url in found.metadata.get_all("Project-URL", []))
    return {"Version": found.version, "Source": urls["Source"], "Requires": "\n".join(found.requires or [])}


def required(info: dict[str, str]) -> set[str]:
    """The distributions that the wheel needs, and those that they need, without extras."""
    found: set[str] = set()
    wanted = list(_needed(info["Requires"].splitlines(), {""}))
    while wanted:
        one = wanted.pop()
        if one.name not in found:
            found.add(one.name)
            wanted += _needed(metadata.distribution(one.name).requires or [], {"", *one.extras})
    return found


def _needed(lines: list[str], extras: set[str]) -> Iterator[Requirement]:
    for one in map(Requirement, lines):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
            yield one


def copy_distribution(name: str, site: Path) -> None:
    """Copy what is installed of a distribution: its modules, with their bytecode, and its programs."""
    installed = metadata.distribution(name)
    for file in installed.files or []:
        source = Path(str(installed.locate_file(file)))
        if file.parts[0] != "..":
            copy(source, site / file)
        elif "bin" in file.parts and source.read_bytes()[:4] == b"\x7fELF":  # py-spy; scripts belong to the other environment
            copy(source, site.parents[2] / "bin" / file.name)


def make_environment(tree: Path) -> None:
    """Make the virtual environment and its command; compile what has no bytecode yet, for users cannot write it later."""
    folder = tree / HOME
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (folder / "bin/python").symlink_to(f"/usr/bin/{PYTHON}")
    for name in ("gputop", "gputop-ebpf"):
        (folder / "bin" / name).write_text(_SCRIPT)
        (folder / "bin" / name).chmod(0o755)
        (tree / "usr/bin").mkdir(parents=True, exist_ok=True)
        (tree / "usr/bin" / name).symlink_to(f"../lib/gputop/bin/{name}")
    compileall.compile_dir(tree / SITE, quiet=2, stripdir=str(tree), prependdir="/")


def add_files(tree: Path, info: dict[str, str]) -> None:
    """Settings, units, licences and the changelog."""
    settings = printed(sys.executable, "-m", "gputop", "config", "print", GPUTOP_CONFIG="/dev/null", PYTHONPATH=str(tree / SITE))
    (tree / "etc/gputop").mkdir(parents=True)
    (tree / "etc/gputop/config.toml").write_text(f"# For all users; their own ~/.config/gputop/config.toml comes before it.\n{settings}\n")
    for unit in ("gputop-record.service", "gputop-exporter.service", "gputop-report.service", "gputop-report.timer"):
        place = tree / "usr/lib/systemd/system" / unit
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text_of(unit, "/usr/bin/gputop"))
    about = tree / "usr/share/doc/gputop-ebpf"
    about.mkdir(parents=True)
    licences = [path.read_text(encoding="utf-8") for path in (ROOT / "probes/LICENSE", ROOT / "LICENSE")]
    (about / "copyright").write_text("\n".join([f"Source: {info['Source']}", *licences]), encoding="utf-8")
    compress(ROOT / "CHANGELOG.md", about / "changelog.gz")


def copy(source: Path, place: Path) -> None:
    """Copy a file with its time, which bytecode refers to."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, place)


def compress(source: Path, place: Path) -> None:
    """Copy a file, compressed; the same bytes each time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


def printed(*command: str, **variables: str) -> str:
    """What a command prints."""
    environ = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", **variables}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environ, cwd="/").stdout.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a Debian package of a wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path(), help="the folder")
    given = parser.parse_args()
    print(build(given.wheel, given.output))
