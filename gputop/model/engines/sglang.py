"""SGLang: the main process takes requests and makes tokens of them; a scheduler for each GPU, and a detokenizer, are its children."""

from gputop.model.engines import DETOKENIZER, FRONT, OTHER, SCHEDULER, TOKENIZER, Engine, Metric

ENGINE = Engine(
    name="sglang", title="SGLang", versions="0.5",
    programs=frozenset(("sglang", "sglang::")),
    titles=(
        ("sglang::sched", SCHEDULER), ("sglang::detok", DETOKENIZER), ("sglang::token", TOKENIZER),
        ("sglang::http", FRONT), ("sglang::", OTHER),
    ),
    port=30000, flags=("--port",), prefix="sglang:",
    metrics=(
        Metric("sglang:num_running_reqs", "running"), Metric("sglang:num_queue_reqs", "waiting"),
        Metric("sglang:token_usage", "kv_used_pct", 100.0),
        Metric("sglang:num_retracted_requests_total", "preemptions"), Metric("sglang:prompt_tokens_total", "prompt_tokens"),
        Metric("sglang:generation_tokens_total", "generated_tokens"), Metric("sglang:num_requests_total", "finished"),
        Metric("sglang:time_to_first_token_seconds", "first_token", 1e6),
        Metric("sglang:inter_token_latency_seconds", "per_token", 1e6), Metric("sglang:time_per_output_token_seconds", "per_token", 1e6),
        Metric("sglang:queue_time_seconds", "queued", 1e6), Metric("sglang:e2e_request_latency_seconds", "whole", 1e6),
    ),
    off="start it with --enable-metrics",
)  # fmt: skip
