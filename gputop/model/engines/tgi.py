"""Text Generation Inference: a launcher starts a router, which takes requests, and a shard for each GPU."""

from gputop.model.engines import FRONT, OTHER, SCHEDULER, Engine, Metric

ENGINE = Engine(
    name="tgi", title="TGI", versions="3.3",
    programs=frozenset(("text-generation-launcher", "text-generation-router", "text-generation-server", "text_generation_server")),
    titles=(
        ("text-generation-server", SCHEDULER), ("text_generation_server", SCHEDULER), ("text-generation-router", FRONT),
        ("text-generation", OTHER),
    ),
    port=3000, flags=("--port", "-p"), prefix="tgi_",
    metrics=(
        Metric("tgi_batch_current_size", "running"), Metric("tgi_queue_size", "waiting"),
        Metric("tgi_request_input_length", "prompt_tokens", takes="sum"),
        Metric("tgi_request_generated_tokens", "generated_tokens", takes="sum"), Metric("tgi_request_success", "finished"),
        Metric("tgi_batch_inference_count", "steps"),
        Metric("tgi_request_mean_time_per_token_duration", "per_token", 1e6), Metric("tgi_request_queue_duration", "queued", 1e6),
        Metric("tgi_request_duration", "whole", 1e6),
    ),
    off="its router serves them at /metrics of its own port",
)  # fmt: skip
