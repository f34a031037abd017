"""vLLM: an API server, which starts `VLLM::EngineCore`, which starts a worker for each GPU; with one GPU the core computes itself."""

from gputop.model.engines import FRONT, OTHER, SCHEDULER, WORKER, Engine, Metric

ENGINE = Engine(
    name="vllm", title="vLLM", versions="0.8 to 0.33",
    programs=frozenset(("vllm", "vllm::")),
    titles=(("::enginecor", SCHEDULER), ("vllm::worker", WORKER), ("vllm::apiserver", FRONT), ("vllm::", OTHER)),
    port=8000, flags=("--port",), prefix="vllm:",
    metrics=(
        Metric("vllm:num_requests_running", "running"), Metric("vllm:num_requests_waiting", "waiting"),
        Metric("vllm:kv_cache_usage_perc", "kv_used_pct", 100.0), Metric("vllm:gpu_cache_usage_perc", "kv_used_pct", 100.0),
        Metric("vllm:num_preemptions_total", "preemptions"), Metric("vllm:prompt_tokens_total", "prompt_tokens"),
        Metric("vllm:generation_tokens_total", "generated_tokens"), Metric("vllm:request_success_total", "finished"),
        Metric("vllm:iteration_tokens_total", "steps", takes="count"), Metric("vllm:iteration_tokens_total", "step_tokens", takes="sum"),
        Metric("vllm:time_to_first_token_seconds", "first_token", 1e6),
        Metric("vllm:inter_token_latency_seconds", "per_token", 1e6), Metric("vllm:time_per_output_token_seconds", "per_token", 1e6),
        Metric("vllm:request_queue_time_seconds", "queued", 1e6), Metric("vllm:e2e_request_latency_seconds", "whole", 1e6),
    ),
    off="start it without --disable-log-stats",
)  # fmt: skip
