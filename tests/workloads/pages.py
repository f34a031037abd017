"""What inference servers count of their requests, as their own pages of metrics have it: names, labels, types and buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


class Histogram:
    """Of Prometheus: cumulative buckets, a sum and a count."""

    def __init__(self, *bounds: float) -> None:
        self._bounds, self._counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def lines(self, name: str, of: str) -> Iterator[str]:
        """All of it, for the labels ``of``."""
        yield f"# TYPE {name} histogram"
        joined = f"{of}," if of else ""
        for bound, below in zip((*map(str, self._bounds), "+Inf"), accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{{joined}le="{bound}"}} {below}'
        yield f"{name}_sum{{{of}}} {self.total:.6f}"
        yield f"{name}_count{{{of}}} {sum(self._counts)}"


def _seconds() -> Histogram:
    return Histogram(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)


@dataclass(slots=True)
class Counts:
    """Of a server since its start. ``last`` is what its engine said of its last pass."""

    model: str
    last: dict[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated: int = 0
    asked: int = 0
    finished: int = 0
    queued: Histogram = field(default_factory=_seconds)
    first: Histogram = field(default_factory=_seconds)
    between: Histogram = field(default_factory=_seconds)
    whole: Histogram = field(default_factory=_seconds)

    def of_engine(self, name: str) -> float:
        """A number of the engine's."""
        number: float = self.last.get(name, 0)
        return number


Page = Callable[[Counts], str]


def vllm(counts: Counts) -> str:
    """Of vLLM's API server."""
    of = f'engine="0",model_name="{counts.model}"'
    gauges = {
        "num_requests_running": counts.of_engine("running"), "num_requests_waiting": counts.of_engine("waiting"),
        "kv_cache_usage_perc": counts.of_engine("kv"),
    }  # fmt: skip
    counters = {
        "num_preemptions": counts.of_engine("preemptions"), "prompt_tokens": counts.prompt_tokens, "generation_tokens": counts.generated,
    }  # fmt: skip
    lines = [*_numbers("vllm:", of, gauges, counters)]
    lines += _plain("vllm:request_success_total", "counter", f'{of},finished_reason="length"', counts.finished)
    lines += [f"vllm:iteration_tokens_total_sum{{{of}}} {counts.of_engine('step_tokens')}"]
    lines += [f"vllm:iteration_tokens_total_count{{{of}}} {counts.of_engine('steps')}"]
    lines += counts.queued.lines("vllm:request_queue_time_seconds", of)
    return _page(lines, counts, "vllm:", of)


def sglang(counts: Counts) -> str:
    """Of SGLang with `--enable-metrics`."""
    of = f'engine_type="unified",model_name="{counts.model}",pp_rank="0",tp_rank="0"'
    gauges = {
        "num_running_reqs": counts.of_engine("running"), "num_queue_reqs": counts.of_engine("waiting"),
        "token_usage": counts.of_engine("kv"),
    }  # fmt: skip
    counters = {
        "num_retracted_requests": counts.of_engine("preemptions"), "num_requests": counts.finished, "prompt_tokens": counts.prompt_tokens,
        "generation_tokens": counts.generated,
    }  # fmt: skip
    lines = [*_numbers("sglang:", of, gauges, counters)]
    lines += counts.queued.lines("sglang:queue_time_seconds", of)
    return _page(lines, counts, "sglang:", of)


def tgi(counts: Counts) -> str:
    """Of text-generation-router."""
    lines = [*_plain("tgi_batch_current_size", "gauge", "", counts.of_engine("running"))]
    lines += _plain("tgi_queue_size", "gauge", "", counts.of_engine("waiting"))
    lines += _plain("tgi_request_count", "counter", "", counts.asked)
    lines += [*_plain("tgi_request_success", "counter", 'kind="full"', counts.finished)]
    for name, total in (("generated_tokens", counts.generated), ("input_length", counts.prompt_tokens)):
        lines += [f"# TYPE tgi_request_{name} histogram", f'tgi_request_{name}_bucket{{le="+Inf"}} {counts.finished}']
        lines += [f"tgi_request_{name}_sum {total}", f"tgi_request_{name}_count {counts.finished}"]
    lines += counts.queued.lines("tgi_request_queue_duration", "")
    lines += [*counts.between.lines("tgi_request_mean_time_per_token_duration", ""), *counts.whole.lines("tgi_request_duration", "")]
    return "\n".join([*lines, ""])


def triton(counts: Counts) -> str:
    """Of tritonserver, at its port for metrics: durations are sums, in microseconds."""
    of, waiting = f'model="{counts.model}",version="1"', counts.asked - counts.finished
    totals = {
        "request_success": counts.finished, "count": counts.generated, "exec_count": counts.of_engine("steps"),
        "request_duration_us": int(counts.whole.total * 1e6), "queue_duration_us": int(counts.queued.total * 1e6),
    }  # fmt: skip
    lines = [line for name, value in totals.items() for line in _plain(f"nv_inference_{name}", "counter", of, value)]
    return "\n".join([*lines, *_plain("nv_inference_pending_request_count", "gauge", of, waiting), ""])


def _page(lines: list[str], counts: Counts, prefix: str, of: str) -> str:
    lines += counts.first.lines(f"{prefix}time_to_first_token_seconds", of)
    lines += counts.between.lines(f"{prefix}inter_token_latency_seconds", of)
    lines += counts.whole.lines(f"{prefix}e2e_request_latency_seconds", of)
    return "\n".join([*lines, ""])


def _numbers(prefix: str, of: str, gauges: Mapping[str, float], counters: Mapping[str, float]) -> Iterator[str]:
    for name, value in gauges.items():
        yield from _plain(f"{prefix}{name}", "gauge", of, value)
    for name, value in counters.items():
        yield from _plain(f"{prefix}{name}_total", "counter", of, value)


def _plain(name: str, kind: str, of: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{of}}} {value}" if of else f"{name} {value}"
