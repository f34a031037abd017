"""Triton Inference Server: one process, `tritonserver`, with a stub for each model in Python."""

from gputop.model.engines import OTHER, Engine, Metric

ENGINE = Engine(
    name="triton", title="Triton", versions="2.50 and later",
    programs=frozenset(("tritonserver",)), titles=(("triton_python_backend_stub", OTHER), ("triton_python_b", OTHER)),
    port=8002, flags=("--metrics-port",), prefix="nv_inference_",
    metrics=(
        Metric("nv_inference_pending_request_count", "waiting"), Metric("nv_inference_request_success", "finished"),
        Metric("nv_inference_queue_duration_us", "queued_us"), Metric("nv_inference_request_duration_us", "whole_us"),
        Metric("nv_inference_exec_count", "steps"), Metric("nv_inference_count", "step_tokens"),
    ),
    off="start it without --allow-metrics=false",
)  # fmt: skip
