"""The kind of program that a job is, for advice that it can follow: by the libraries it maps, its names, and its feeders.

A program that loads by torch's DataLoader is known by its workers' names, in Python that is no engine's own process. For
others the names of the job's members decide (an inference engine, Ray, ffmpeg), then the loader library that it maps, then whether it is
Python at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from gputop.diagnosis.facts.facts import Facts, JobFacts
from gputop.diagnosis.facts.feeders import LISTENING, programs_read
from gputop.diagnosis.facts.waits import PIPE
from gputop.findings import policy
from gputop.model.engines import engine_of, names_of
from gputop.model.frame import ProcInfo
from gputop.model.roles import is_python


class Kind(Enum):
    """How a program gets its input to the GPU."""

    TORCH = "torch DataLoader"
    TF_DATA = "tf.data"
    JAX = "JAX"
    GRAIN = "grain"
    DALI = "DALI"
    STREAMING = "Hugging Face streaming"
    POOL = "processes of its own"
    RAY = "Ray"
    FFMPEG = "ffmpeg"
    ENGINE = "inference engine"
    NATIVE = "MPI or C++"
    UNKNOWN = "unknown"


LEARNT = frozenset((Kind.TORCH, Kind.POOL))  # kinds with enough jobs in the corpus to know how often their causes are right
_ENGINES = frozenset((
    "llama-cli", "llama_cpp", "ollama", "trtllm-serve", "trtllm-llmapi-launch", "tensorrt_llm", "lmdeploy", "aphrodite", "tabbyapi",
    "mlc_llm",
))  # fmt: skip
"""Programs and modules of inference engines, in small letters, besides those whose metrics are read (`gputop.model.engines`)."""
_ENGINE_LIBS = frozenset(("vllm", "llama"))
_DECODERS = frozenset(("ffmpeg", "ffprobe", "gst-launch-1.0", "avconv"))
_RAY = "ray::"  # beginning of the titles of Ray's workers
_BY_LOADER = {"grain": Kind.GRAIN, "dali": Kind.DALI, "tensorflow": Kind.TF_DATA}
"""Word of `gputop.model.roles.Role.loader` -> kind; torch alone is no proof of a DataLoader."""


def kind_of(job: JobFacts, facts: Facts) -> Kind:
    """The kind of a job. The order matters: what its processes are called is surer than what they map."""
    info = job.trainer.info
    if job.workers and job.loader.is_torchs and is_python(info) and engine_of(info) is None:
        return Kind.TORCH  # also of a trainer that has an engine within it, for its samples
    members = [one.info for one in (job.trainer, *job.workers)]
    own = {name for info in members for name in names_of(info)}
    if own & _ENGINES or any(map(engine_of, members)) or _ENGINE_LIBS & {*info.libs}:
        return Kind.ENGINE
    feeders = {name for one in _feeders(job, facts) for name in names_of(one)} | {*job.programs.names.values()}
    if _RAY in own | feeders or "ray" in info.libs:
        return Kind.RAY
    return Kind.FFMPEG if _DECODERS & feeders else _by_libraries(job)


def is_engines(info: ProcInfo) -> bool:
    """True if a process is named as one of an inference engine's."""
    return engine_of(info) is not None or bool(_ENGINES & {*names_of(info)})


def _by_libraries(job: JobFacts) -> Kind:
    info, loader = job.trainer.info, (job.workers[0] if job.workers else job.trainer).role.loader
    if loader in _BY_LOADER or "jax" in info.libs:
        return _BY_LOADER.get(loader, Kind.JAX)
    if job.workers and is_python(info):
        return Kind.POOL
    if not is_python(info) or ("mpi" in info.libs and "torch" not in info.libs):
        return Kind.NATIVE
    if {"arrow", "http"} <= {*info.libs}:
        return Kind.STREAMING
    serves = info.sockets == LISTENING and job.trainer.role.rank is None  # the first rank of a training listens for the others
    reads = bool(job.programs.names) and (job.trainer.kinds.get(PIPE, 0.0) >= policy.LOST or programs_read(job) > 0.0)
    return Kind.TORCH if "torch" in info.libs and not (job.feeders.pids or reads or serves) else Kind.UNKNOWN


def _feeders(job: JobFacts, facts: Facts) -> Iterator[ProcInfo]:
    """Processes that load for the job, or hold the other end of a pipe or socket that it reads, as far as they use CPUs."""
    ends = {*job.feeders.pids, *job.trainer.info.other_ends, *job.feeders.woken_by}
    return (taker.info for taker in facts.takers if taker.pid in ends and taker.info is not None)

