"""Which variables of a process's environment are kept."""

from __future__ import annotations

from collections.abc import Mapping

RANK_VARIABLES = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "JAX_PROCESS_ID", "SLURM_PROCID", "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
"""Where a launcher says the rank, the global one before the local one."""
SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "JAX_NUM_PROCESSES", "SLURM_NTASKS")
"""Where it says how many ranks there are."""
ENV_OF_INTEREST = (
    *RANK_VARIABLES, *SIZE_VARIABLES, "LOCAL_WORLD_SIZE", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip
"""Enough for ranks, devices and thread counts, nothing secret."""


def number_in(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """What the first of these variables says that holds a number (of nine digits at most: anybody may set them); None where none does."""
    told = (env.get(name, "") for name in names)
    return next((int(value[:9]) for value in told if value.isascii() and value.isdigit()), None)
