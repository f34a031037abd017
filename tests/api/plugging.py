"""gputop with the example package installed: prints as JSON what its source, its cause and its exports came to."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile

from gputop import cli
from gputop.collector.beat import Collector
from gputop.commands.replay import sample
from gputop.findings.verdict import CAUSES
from gputop.model.frame import Frame
from gputop.sources import Settings
from gputop.system.program import report
from gputop.tables.exports import formats


class Kept:
    """Keeps the frames."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> bool:
        self.frames.append(frame)
        return True


def ran(*words: str) -> tuple[int, str, str]:
    """(exit code, output, errors) of a command."""
    with contextlib.redirect_stderr(io.StringIO()) as errors, tempfile.TemporaryFile() as output:
        kept = os.dup(1)
        os.dup2(output.fileno(), 1)
        try:
            code = cli.main([*words])
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
        output.seek(0)
        return code, output.read().decode(), errors.getvalue()


if __name__ == "__main__":
    kept = Kept()
    Collector(Settings(20_000_000, ebpf=False, gpus=frozenset()), kept).run(2)
    states = {state.name: [state.state, state.reason, state.remedy] for frame in kept.frames for state in frame.sources}
    gpus = [[gpu.index, gpu.name, gpu.util_pct] for frame in kept.frames for gpu in frame.gpus]
    code, text, errors = ran("explain", str(sample()), "--json", "--from", "10s", "--until", "20s")
    folder = tempfile.mkdtemp()
    names = os.path.join(folder, "names.txt")
    exported = ran("export", str(sample()), "--to", "names", "-o", names)
    broken = ran("export", str(sample()), "--to", "nothing", "-o", os.path.join(folder, "nothing"))
    with open(names, encoding="utf-8") as file:
        written = file.read().split()
    print(json.dumps({
        "states": states, "gpus": gpus, "explained": [code, json.loads(text), errors], "exported": exported, "written": written,
        "broken": broken, "report": report(), "causes": CAUSES, "formats": formats(),
    }))  # fmt: skip
