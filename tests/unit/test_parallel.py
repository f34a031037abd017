"""How a training is divided over its ranks, by its command line."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gputop.model.parallel import CONTEXT, EXPERT, REPLICA, STAGE, TENSOR, Parallel, files_of, parallel_of, sizes_in


@pytest.mark.parametrize(
    ("command", "size", "wanted"),
    [
        ("pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --bf16", 64, Parallel(64, tp=8, pp=4)),
        ("pretrain_gpt.py --tensor-model-parallel-size=2 --context-parallel-size=2 --expert-model-parallel-size=4", 16,
         Parallel(16, tp=2, cp=2, ep=4)),
        ("ds_train.py --deepspeed --pipe-parallel-size 2 --model-parallel-size 2", 8, Parallel(8, tp=2, pp=2)),
        ("-m torchtitan.train --parallelism.tensor_parallel_degree=4 --parallelism.pipeline_parallel_degree 2", 16,
         Parallel(16, tp=4, pp=2)),
        ("megatron_gpt_pretraining.py model.tensor_model_parallel_size=2 ++model.pipeline_model_parallel_size=4", 8,
         Parallel(8, tp=2, pp=4)),
        ("train.py --tp-size 2 --pp-size 2", 4, Parallel(4, tp=2, pp=2)),
        ("train.py --pipeline-model-parallel-size 2 --pipeline-model-parallel-size 4", 8, Parallel(8, pp=4)),
    ],
)  # fmt: skip
def test_sizes_are_those_of_the_command_line(command: str, size: int, wanted: Parallel) -> None:
    assert parallel_of(command.split(), size) == wanted


@pytest.mark.parametrize(
    ("command", "size"),
    [
        ("train.py --batch-size 4", 8),
        ("train.py --tensor-model-parallel-size 3", 8),  # does not divide them
        ("train.py --tensor-model-parallel-size 16", 8),
        ("train.py --tensor-model-parallel-size 0", 8),
        ("train.py --tensor-model-parallel-size", 8),
        ("train.py --tensor-model-parallel-size 99999999999999999999", 8),
        ("train.py --pipeline-model-parallel-size ٤", 8),
        ("train.py tensor_model_parallel_size", 8),
    ],
)
def test_sizes_that_are_none_or_make_no_sense_are_unknown(command: str, size: int) -> None:
    assert parallel_of(command.split(), size) is None


def test_stages_lie_farthest_apart() -> None:
    parallel = Parallel(16, tp=2, pp=4)
    assert (parallel.dp, [parallel.part_of(STAGE, rank) for rank in (0, 3, 4, 15)]) == (2, [0, 0, 1, 3])


def test_the_place_of_a_rank() -> None:
    """As Megatron orders its groups (tp-cp-ep-dp-pp), and torchtitan its mesh."""
    parallel = Parallel(32, tp=2, cp=2, pp=2, ep=2)
    places = {rank: [parallel.part_of(part, rank) for part in (TENSOR, CONTEXT, REPLICA, STAGE, EXPERT)] for rank in (0, 1, 2, 5, 11, 30)}
    assert places == {
        0: [0, 0, 0, 0, 0], 1: [1, 0, 0, 0, 0], 2: [0, 1, 0, 0, 1], 5: [1, 0, 1, 0, 0], 11: [1, 1, 2, 0, 1], 30: [0, 1, 3, 1, 1],
    }  # fmt: skip


@pytest.mark.parametrize("parallel", [Parallel(64, tp=8, pp=4), Parallel(16, tp=2, cp=4), Parallel(8), Parallel(24, tp=3, pp=2, cp=2)])
def test_groups_are_of_the_sizes_that_were_asked_for(parallel: Parallel) -> None:
    groups: dict[Any, set[int]] = {}
    for rank in range(parallel.size):
        for group in parallel.groups_of(rank):
            groups.setdefault(group, set()).add(rank)
    assert {kind: {len(ranks) for (own, *_), ranks in groups.items() if own == kind} for kind in (TENSOR, CONTEXT, REPLICA)} == {
        TENSOR: {parallel.tp}, CONTEXT: {parallel.cp}, REPLICA: {parallel.dp},
    }  # fmt: skip
    for (kind, *_), ranks in groups.items():
        others = {TENSOR, CONTEXT, REPLICA, STAGE} - {kind}
        assert all(len({parallel.part_of(other, rank) for rank in ranks}) == 1 for other in others)


TOML = b"""
[training]
local_batch_size = 8
# tensor_parallel_degree = 8
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2  # within a node
pipeline_parallel_degree=4
pipeline_parallel_schedule = "1F1B"
"""
YAML = b"""model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: '2'
  context_parallel_size: ${oc.env:CP}
  # expert_model_parallel_size: 8
"""


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (TOML, {"tp": 2, "pp": 4}), (YAML, {"tp": 4, "pp": 2}), (YAML.replace(b"\n", b"\r\n"), {"tp": 4, "pp": 2}),
        (b'{"train_batch_size": 8, "tensor_parallel": {"autotp_size": 4}}', {"tp": 4}),
        (b'{\n "pipe-parallel-size": 2,\n "model-parallel-size": 2\n}', {"pp": 2, "tp": 2}),
        (b"tensor_parallel_dim: 2\ncontext_parallel_dim: 2\n", {"tp": 2, "cp": 2}),
        (b"parallelism_config:\n  parallelism_config_tp_size: 2\n", {"tp": 2}),
        (b"a: {tensor_parallel_size: 2}\nb: {tensor_parallel_size: 4}\n", {}),
        (b"tensor_parallel_size: 0\npp_size: -2\ncp_size: 99999999999\nep_size: 2.5\n", {}),
        (b"", {}), (b"\xff\xfe\x00" * 99, {}), (b"tp_size" * 9999, {}), (b"[" * 100_000, {}), (b'"' * 100_000, {}),
        (b" " * 100_000 + b"#", {}), (b"a" + b" " * 100_000, {}), (b"a:" * 50_000, {}),
    ],
)  # fmt: skip
def test_sizes_in_configuration_files(data: bytes, wanted: dict[str, int]) -> None:
    began = time.process_time()
    assert sizes_in(data) == wanted
    assert time.process_time() - began < 2.0


def test_files_of_a_command_line() -> None:
    words = "python -m torchtitan.train --job.config_file ./a.toml --x=b.YAML c.json model.pt --d.toml a.toml e.yml f.yml"
    assert files_of(words.split()) == ["./a.toml", "b.YAML", "c.json", "a.toml"]


def test_the_command_line_overrules_its_files() -> None:
    assert parallel_of(["t.py", "--tp-size", "4"], 16, {"tp": 2, "pp": 2, "zz": 7}) == Parallel(16, tp=4, pp=2)
    assert parallel_of(["t.py"], 16, {"tp": 3}) is None
    assert parallel_of(["t.py"], 16, {"tp": -2, "pp": -4}) is None
    assert parallel_of(["t.py"], 16, {}) is None
    assert parallel_of([], 16, {"tp": 2}) == Parallel(16, tp=2)
