"""What the inference servers of workloads are made of: tokenizers, pages of metrics, titles; without a GPU."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wait import PATIENCE_S
from tests.workloads import pages, tokens
from tests.workloads.environment import ROOT

_TITLED = """
from pathlib import Path
from tests.workloads import program
program.titled("sglang::scheduler", "--rank", "0")
program.titled("text-generation-router", "--validation-workers", "1", name="router")
print(repr((Path("/proc/self/comm").read_text(), Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").split(b"\\0"))))
"""


@pytest.mark.parametrize("kind", ["prose", "logs"])
def test_both_tokenizers_give_text_back(tmp_path: Path, kind: str) -> None:
    if tokens.missing():
        pytest.skip(tokens.missing())
    tokens.learn(tmp_path)
    text = tokens.TEXTS[kind](2000, random.Random(3))
    assert len(text) == 2000
    for tokenizer in (tokens.Fast(tmp_path), tokens.Slow(tmp_path)):
        ids = tokenizer.encode(text)
        assert len(ids) < len(text)
        assert tokenizer.decode(ids) == text


def test_a_process_goes_by_its_last_title() -> None:
    asked = [sys.executable, "-c", _TITLED, "an argument that makes room " * 4]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=ROOT, timeout=PATIENCE_S).stdout
    assert told.strip() == repr(("router\n", [b"text-generation-router", b"--validation-workers", b"1"]))


@pytest.mark.parametrize(
    ("page", "line"),
    [
        (pages.vllm, 'vllm:num_requests_waiting{engine="0",model_name="m"} 4'),
        (pages.sglang, 'sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.5'),
        (pages.tgi, "tgi_request_generated_tokens_sum 7"),
        (pages.triton, 'nv_inference_count{model="m",version="1"} 7'),
    ],
)
def test_a_page_has_what_the_engine_counts(page: pages.Page, line: str) -> None:
    counts = pages.Counts("m", last={"waiting": 4, "kv": 0.5}, generated=7)
    assert line in page(counts).splitlines()


def test_buckets_are_cumulative() -> None:
    made = pages.Histogram(0.1, 1.0)
    for value in (0.05, 0.5, 0.7, 3.0):
        made.add(value)
    assert list(made.lines("h", 'a="b"'))[1:] == [
        *('h_bucket{a="b",le="0.1"} 1', 'h_bucket{a="b",le="1.0"} 3', 'h_bucket{a="b",le="+Inf"} 4'),
        *('h_sum{a="b"} 4.250000', 'h_count{a="b"} 4'),
    ]
