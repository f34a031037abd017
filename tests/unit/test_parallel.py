"""How a training is divided over its ranks, by its command line."""

from __future__ import annotations

import pytest

from gputop.model.parallel import Parallel, parallel_of


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
    assert (parallel.dp, [parallel.stage_of(rank) for rank in (0, 3, 4, 15)]) == (2, [0, 0, 1, 3])
