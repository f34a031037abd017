"""llama.cpp: one process, `llama-server`."""

from gputop.model.engines import Engine, Metric

ENGINE = Engine(
    name="llamacpp", title="llama.cpp", versions="b5000 to b11549",
    programs=frozenset(("llama-server",)), titles=(),
    port=8080, flags=("--port",), prefix="llamacpp:",
    metrics=(
        Metric("llamacpp:requests_processing", "running"), Metric("llamacpp:requests_deferred", "waiting"),
        Metric("llamacpp:kv_cache_usage_ratio", "kv_used_pct", 100.0), Metric("llamacpp:prompt_tokens_total", "prompt_tokens"),
        Metric("llamacpp:tokens_predicted_total", "generated_tokens"), Metric("llamacpp:n_decode_total", "steps"),
    ),
    off="start it with --metrics",
)  # fmt: skip
