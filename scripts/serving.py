"""Make screenshots/serving.gputop: the corpus' run of an inference server whose memory for keys and values gets full, with only its own
processes and neutral names in it. All measurements stay.

    .venv/bin/python scripts/serving.py [OUT]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sample import stripped  # noqa: E402

from gputop.model.frame import Frame, Header, ProcInfo  # noqa: E402
from gputop.recording.writer import Writer  # noqa: E402
from tests.corpus import runs  # noqa: E402

RUN, MODE = "kv-full-long-answers", "eBPF"
_TITLES = {"VLLM::EngineCor": ["VLLM::EngineCore"], "VLLM::APIServer": ["VLLM::APIServer"]}  # comm -> command line
_CLIENTS = ["python", "load_test.py"]


def main(out: str) -> None:
    """Read, clean, write."""
    run = runs.load(ROOT / "tests" / "corpus" / "data" / f"{RUN}.xz")
    header, *frames = run.items(MODE)
    assert isinstance(header, Header)
    Path(out).unlink(missing_ok=True)
    writer = Writer(out, msgspec.structs.replace(header, host="node7"))
    for frame in frames:
        assert isinstance(frame, Frame)
        cleaned = stripped(frame, set(run.family))
        writer.add(msgspec.structs.replace(cleaned, infos=[_neutral(info) for info in cleaned.infos]))
    writer.close()
    os.chmod(out, 0o644)


def _neutral(info: ProcInfo) -> ProcInfo:
    return msgspec.structs.replace(info, cmdline=_TITLES.get(info.comm, _CLIENTS))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "screenshots" / "serving.gputop"))
