"""Write what users of the metrics read: Grafana's dashboard, packaging/grafana/gputop.json, and the table in docs/exporter.md.

    scripts/dashboard.py          write them
    scripts/dashboard.py --check  exit 1 if one is out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gputop.metrics.registry import METRICS  # noqa: E402 - of this tree

DASHBOARD, DOCS = ROOT / "packaging/grafana/gputop.json", ROOT / "docs/exporter.md"
BEGIN, END = "<!-- metrics: `make manual` writes this table -->\n", "<!-- /metrics -->"
COLUMNS = 24  # of a dashboard's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NODE, TRAINER = '{instance=~"$instance"}', '{instance=~"$instance",trainer=~"$trainer"}'
LOST, HAD = "gputop_trainer_gpu_lost_seconds_total", "gputop_trainer_gpu_seconds_total"


class Panel(NamedTuple):
    """One panel: a ``kind`` of Grafana, with an expression for each legend."""

    kind: str  # ``timeseries``, ``stat`` or ``table``
    title: str
    unit: str
    width: int  # columns
    exprs: dict[str, str]  # legend -> PromQL
    description: str
    stacked: bool = False


def rate(metric: str, selector: str) -> str:
    return f"rate({metric}{selector}[$__rate_interval])"


ROWS: dict[str, list[Panel]] = {
    "Fleet": [
        Panel("stat", "Nodes", "none", 4, {"nodes": f"count(count by (instance) (gputop_node_info{NODE}))"}, "Nodes whose gputop answers."),
        Panel("stat", "GPUs", "none", 4, {"GPUs": f"count(gputop_gpu_info{NODE})"}, "GPUs of these nodes."),
        Panel("stat", "GPU time lost", "percentunit", 4, {"lost": f"sum({rate(LOST, NODE)}) / sum({rate(HAD, NODE)})"},
              "Share of the trainings' GPU time that was not used, whatever the cause."),
        Panel("stat", "GPUs idle", "short", 4, {"GPUs": f"sum({rate(LOST, NODE)})"},
              "As many whole GPUs do nothing, though a training holds them."),
        Panel("stat", "Lost GPUs", "none", 4, {"GPUs": f"sum(gputop_gpu_lost{NODE})"}, "GPUs that the driver has lost."),
        Panel("stat", "Hung trainings", "none", 4, {"ranks": f"sum(gputop_trainer_hung{NODE})"},
              "Ranks of which nothing moves, while they wait for somebody of their job."),
        Panel("timeseries", "Idle GPUs, by cause", "short", 12, {"{{cause}}": f"sum by (cause) ({rate(LOST, NODE)}) > 0"},
              "GPUs that trainings hold and do not use, by why. The causes: docs/diagnosis.md.", stacked=True),
        Panel("timeseries", "CPUs taken from trainings, by program", "short", 12,
              {"{{name}}": f"sum by (name) ({rate('gputop_culprit_cpu_seconds_total', NODE)})"}, "CPUs they took."),
        Panel("table", "Trainings that lose most", "percentunit", 24,
              {"lost": f"topk(20, sum by (instance, trainer, cause) ({rate(LOST, NODE)}) / on (instance, trainer) group_left () "
                       f"sum by (instance, trainer) ({rate(HAD, NODE)}) > 0.01)"}, "Share of its GPU time that each lost, by cause."),
        Panel("table", "GPU hours lost in the last hour, by job", "h", 24,
              {"hours": f"sum by (slurm_job_id, namespace, user, program) (increase({LOST}{NODE}[1h]) * on (instance, trainer) "
                        "group_left (slurm_job_id, namespace, user, program) gputop_trainer_info) / 3600"}, "Of jobs that still run."),
    ],
    "Node": [
        Panel("timeseries", "GPU utilization", "percentunit", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_utilization_ratio{NODE}"},
              "Share of time in which a kernel ran or data was copied."),
        Panel("timeseries", "SMs with work", "percentunit", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_sm_active_ratio{NODE}"},
              "Share of SMs with a warp on them: how much of the GPU was used. Hopper and later."),
        Panel("timeseries", "GPU memory", "percentunit", 8,
              {"{{instance}} {{gpu}}": f"gputop_gpu_memory_used_bytes{NODE} / gputop_gpu_memory_total_bytes{NODE}"}, "Share in use."),
        Panel("timeseries", "Power", "watt", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_power_watts{NODE}"}, "Of the board."),
        Panel("timeseries", "Temperature", "celsius", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_temperature_celsius{NODE}"}, "Of the GPU."),
        Panel("timeseries", "SM clock", "hertz", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_sm_clock_hertz{NODE}"}, "Clock of the SMs."),
        Panel("timeseries", "Clocks held down", "percentunit", 8,
              {"{{instance}} {{gpu}} {{reason}}": f"avg_over_time(gputop_gpu_throttled{NODE}[$__rate_interval])"},
              "Share of the time, by reason."),
        Panel("timeseries", "PCIe", "Bps", 8, {
            "{{instance}} {{gpu}} from host": rate("gputop_gpu_pcie_receive_bytes_total", NODE),
            "{{instance}} {{gpu}} to host": rate("gputop_gpu_pcie_transmit_bytes_total", NODE)}, "Bytes over the bus, each way."),
        Panel("timeseries", "NVLink", "Bps", 8, {
            "{{instance}} {{gpu}} receive": rate("gputop_gpu_nvlink_receive_bytes_total", NODE),
            "{{instance}} {{gpu}} transmit": rate("gputop_gpu_nvlink_transmit_bytes_total", NODE)}, "Bytes between GPUs, each way."),
        Panel("timeseries", "Errors", "short", 8, {
            "{{instance}} {{gpu}} Xid": f"increase(gputop_gpu_xid_errors_total{NODE}[$__rate_interval])",
            "{{instance}} {{gpu}} ECC {{kind}}": f"increase(gputop_gpu_ecc_errors_total{NODE}[$__rate_interval])"}, "Xid and ECC errors."),
        Panel("table", "Sources", "none", 8, {"state": f"gputop_node_up_sources{NODE}"}, "What gputop can read on each node."),
        Panel("timeseries", "Cost of gputop", "percentunit", 8,
              {"{{instance}} {{part}}": rate("gputop_self_cpu_seconds_total", NODE)}, "Of one CPU."),
    ],
    "Trainer": [
        Panel("timeseries", "GPU time lost, by cause", "percentunit", 12,
              {"{{cause}}": f"sum by (cause) ({rate(LOST, TRAINER)}) / on () group_left () sum({rate(HAD, TRAINER)}) > 0"},
              "Share of the GPU time of the chosen trainers.", stacked=True),
        Panel("timeseries", "Steps a second", "short", 12, {"{{instance}} {{trainer}}": f"gputop_trainer_steps_per_second{TRAINER}"},
              "Of ranks of one job all are alike."),
        Panel("timeseries", "Main thread", "percentunit", 12,
              {"{{state}}": f"avg by (state) ({rate('gputop_trainer_state_seconds_total', TRAINER)}) > 0"},
              "What it does, or waits for.", stacked=True),
        Panel("timeseries", "Workers", "short", 12,
              {"{{state}}": f"sum by (state) ({rate('gputop_worker_state_seconds_total', TRAINER)}) > 0"},
              "How many of the loader workers are in each state; ahead is healthy.", stacked=True),
        Panel("timeseries", "Workers that starve", "none", 8, {"{{instance}} {{trainer}}": f"gputop_trainer_workers_starving{TRAINER}"},
              "Their trainer waits for them, and something holds them up."),
        Panel("timeseries", "Stragglers", "none", 8, {"{{instance}} {{trainer}}": f"gputop_trainer_straggler{TRAINER}"},
              "1: the other ranks of its job wait for it."),
        Panel("table", "Verdicts", "none", 8, {"now": f"gputop_trainer_verdict_info{TRAINER}"}, "What is said of each trainer now."),
        Panel("table", "Whose they are", "none", 24, {"trainer": f"gputop_trainer_info{TRAINER}"}, "Job, pod and user of each trainer."),
    ],
}  # fmt: skip


def main() -> int:
    """Write them, or check."""
    before, _, rest = DOCS.read_text().partition(BEGIN)
    texts = {DASHBOARD: json.dumps(dashboard(), indent=1) + "\n", DOCS: before + BEGIN + table() + END + rest.partition(END)[2]}
    if "--check" in sys.argv[1:]:
        return int(any(not path.exists() or path.read_text() != text for path, text in texts.items()))
    for path, text in texts.items():
        path.write_text(text)
    return 0


def table() -> str:
    """All metrics, in Markdown."""
    rows = ["| metric | type | labels | what it is |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(metric.labels) or "–"
        otel = f" OpenTelemetry: `{metric.otel}`." if metric.otel else ""
        rows.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help}{otel} |")
    return "\n".join([*rows, ""])


def dashboard() -> dict[str, Any]:
    """The model that Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, held in ROWS.items():
        heading = {"type": "row", "title": row, "collapsed": False, "panels": [], "gridPos": place(0, y, COLUMNS, 1)}
        panels.append({"id": len(panels) + 1} | heading)
        x, y, height = 0, y + 1, 0
        for one in held:
            if x + one.width > COLUMNS:
                x, y = 0, y + height
            height = 4 if one.kind == "stat" else 8
            panels.append(panel(one, len(panels) + 1, place(x, y, one.width, height)))
            x += one.width
        y += height
    return {
        "uid": "gputop", "title": "gputop: why GPUs idle", "tags": ["gpu", "gputop"], "schemaVersion": 39, "version": 1, "editable": True,
        "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            choice("instance", "Node", "label_values(gputop_node_info, instance)"),
            choice("trainer", "Trainer", f"label_values({HAD}{NODE}, trainer)"),
        ]},
        "panels": panels,
    }  # fmt: skip


def place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "refresh": 2,
        "sort": 1, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def panel(one: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    is_table = one.kind == "table"
    targets = [
        {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend, "instant": one.kind != "timeseries",
         "range": one.kind == "timeseries", "format": "table" if is_table else "time_series"}
        for i, (legend, expr) in enumerate(one.exprs.items())
    ]  # fmt: skip
    defaults: dict[str, Any] = {"unit": one.unit, "min": 0}
    options: dict[str, Any] = {}
    if one.kind == "timeseries":
        stacking = {"mode": "normal" if one.stacked else "none", "group": "A"}
        defaults["custom"] = {"fillOpacity": 40 if one.stacked else 0, "lineWidth": 1, "showPoints": "never", "stacking": stacking}
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    elif one.kind == "stat":
        options = {"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    hidden = dict.fromkeys(("Time", "__name__", "job"), True)
    tidied = [{"id": "organize", "options": {"excludeByName": hidden}}] if is_table else []
    return {
        "id": number, "type": one.kind, "title": one.title, "description": one.description, "datasource": SOURCE, "gridPos": grid,
        "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "transformations": tidied,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
