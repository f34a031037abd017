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
from gputop.system.program import DOCUMENTATION  # noqa: E402

DASHBOARD, DOCS = ROOT / "packaging/grafana/gputop.json", ROOT / "docs/exporter.md"
BEGIN, END = "<!-- metrics: `make manual` writes this table -->\n", "<!-- /metrics -->"
COLUMNS = 24  # of a dashboard's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NODE, TRAINER = '{instance=~"$instance"}', '{instance=~"$instance",trainer=~"$trainer"}'
GPU = '{instance=~"$instance",gpu=~"$gpu"}'
CHOSEN = 'on (instance, trainer) gputop_trainer_info{instance=~"$instance",user=~"$user",slurm_job_id=~"$job"}'  # trainers of user and job
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


def of_chosen(expr: str) -> str:
    """Of an expression by trainer what belongs to the chosen user and job."""
    return f"({expr} and {CHOSEN})"


LOST_RATE, HAD_RATE = of_chosen(rate(LOST, NODE)), of_chosen(rate(HAD, NODE))
OF_TRAINER, HAD_OF_TRAINER = of_chosen(rate(LOST, TRAINER)), of_chosen(rate(HAD, TRAINER))

ROWS: dict[str, list[Panel]] = {
    "Fleet": [
        Panel("stat", "Nodes that answer", "none", 3, {"nodes": f"count(count by (instance) (gputop_node_info{NODE}))"},
              "Nodes whose gputop answers."),
        Panel("stat", "GPUs in all", "none", 3, {"GPUs": f"count(gputop_gpu_info{GPU})"}, "GPUs of these nodes."),
        Panel("stat", "Share of trainings' GPU time lost", "percentunit", 4, {"lost": f"sum({LOST_RATE}) / sum({HAD_RATE})"},
              "Of the GPU time that trainings had, what was not used, whatever the cause."),
        Panel("stat", "Held without working, in whole GPUs", "short", 4, {"GPUs": f"sum({LOST_RATE})"},
              "As many whole GPUs do nothing, though a training holds them."),
        Panel("stat", "Cost of lost GPU time", "short", 4, {"cost": f"sum(increase({LOST}{NODE}[$__range]) and {CHOSEN}) / 3600 * $price"},
              "GPU hours that trainings lost in the time shown, at the price of a GPU hour above."),
        Panel("stat", "Fallen off the bus", "none", 3, {"GPUs": f"sum(gputop_gpu_lost{GPU})"},
              "GPUs that the driver has lost: off the bus, in need of a reset, or silent."),
        Panel("stat", "Hung trainings", "none", 3, {"ranks": f"sum({of_chosen('gputop_trainer_hung' + NODE)})"},
              "Ranks of which nothing moves, while they wait for somebody of their job."),
        Panel("timeseries", "Held without working, by cause", "short", 12, {"{{cause}}": f"sum by (cause) {LOST_RATE} > 0"},
              "Whole GPUs that trainings hold and do not use, by why. A click on a cause leads to its page.", stacked=True),
        Panel("timeseries", "CPUs taken from trainings, by program", "short", 12,
              {"{{name}}": f"sum by (name) ({rate('gputop_culprit_cpu_seconds_total', NODE)})"}, "CPUs they took."),
        Panel("table", "Trainings that lose most", "percentunit", 24,
              {"lost": f"topk(20, sum by (instance, trainer, cause) {LOST_RATE} / on (instance, trainer) group_left () "
                       f"sum by (instance, trainer) {HAD_RATE} > 0.01)"}, "Share of its GPU time that each lost, by cause."),
        Panel("table", "GPU hours lost in the last hour, by job", "h", 24,
              {"hours": f"sum by (slurm_job_id, namespace, user, program) (increase({LOST}{NODE}[1h]) * on (instance, trainer) "
                        "group_left (slurm_job_id, namespace, user, program) "
                        'gputop_trainer_info{user=~"$user",slurm_job_id=~"$job"}) / 3600'}, "Of jobs that still run."),
    ],
    "Node": [
        Panel("timeseries", "GPU utilization", "percentunit", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_utilization_ratio{GPU}"},
              "Share of time in which a kernel ran or data was copied."),
        Panel("timeseries", "SMs with work", "percentunit", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_sm_active_ratio{GPU}"},
              "Share of SMs with a warp on them: how much of the GPU was used. Hopper and later."),
        Panel("timeseries", "GPU memory", "percentunit", 8,
              {"{{instance}} {{gpu}}": f"gputop_gpu_memory_used_bytes{GPU} / gputop_gpu_memory_total_bytes{GPU}"}, "Share in use."),
        Panel("timeseries", "Power", "watt", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_power_watts{GPU}"}, "Of the board."),
        Panel("timeseries", "Temperature", "celsius", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_temperature_celsius{GPU}"}, "Of the GPU."),
        Panel("timeseries", "SM clock", "hertz", 8, {"{{instance}} {{gpu}}": f"gputop_gpu_sm_clock_hertz{GPU}"}, "Clock of the SMs."),
        Panel("timeseries", "Clocks held down", "percentunit", 8,
              {"{{instance}} {{gpu}} {{reason}}": f"avg_over_time(gputop_gpu_throttled{GPU}[$__rate_interval])"},
              "Share of the time, by reason."),
        Panel("timeseries", "PCIe", "Bps", 8, {
            "{{instance}} {{gpu}} from host": rate("gputop_gpu_pcie_receive_bytes_total", GPU),
            "{{instance}} {{gpu}} to host": rate("gputop_gpu_pcie_transmit_bytes_total", GPU)}, "Bytes over the bus, each way."),
        Panel("timeseries", "NVLink", "Bps", 8, {
            "{{instance}} {{gpu}} receive": rate("gputop_gpu_nvlink_receive_bytes_total", GPU),
            "{{instance}} {{gpu}} transmit": rate("gputop_gpu_nvlink_transmit_bytes_total", GPU)}, "Bytes between GPUs, each way."),
        Panel("timeseries", "Errors", "short", 8, {
            "{{instance}} {{gpu}} Xid": f"increase(gputop_gpu_xid_errors_total{GPU}[$__rate_interval])",
            "{{instance}} {{gpu}} ECC {{kind}}": f"increase(gputop_gpu_ecc_errors_total{GPU}[$__rate_interval])"}, "Xid and ECC errors."),
        Panel("table", "Sources", "none", 8, {"state": f"gputop_node_up_sources{NODE}"}, "What gputop can read on each node."),
        Panel("timeseries", "Cost of gputop", "percentunit", 8,
              {"{{instance}} {{part}}": rate("gputop_self_cpu_seconds_total", NODE)}, "Of one CPU."),
    ],
    "Trainer": [
        Panel("timeseries", "Share of GPU time lost, by cause", "percentunit", 12,
              {"{{cause}}": f"sum by (cause) {OF_TRAINER} / on () group_left () sum({HAD_OF_TRAINER}) > 0"},
              "Share of the GPU time of the chosen trainers. A click on a cause leads to its page.", stacked=True),
        Panel("timeseries", "Steps a second", "short", 12,
              {"{{instance}} {{trainer}}": of_chosen(f"gputop_trainer_steps_per_second{TRAINER}")},
              "Of ranks of one job all are alike."),
        Panel("timeseries", "Main thread", "percentunit", 12,
              {"{{state}}": f"avg by (state) {of_chosen(rate('gputop_trainer_state_seconds_total', TRAINER))} > 0"},
              "What it does, or waits for.", stacked=True),
        Panel("timeseries", "Workers", "short", 12,
              {"{{state}}": f"sum by (state) {of_chosen(rate('gputop_worker_state_seconds_total', TRAINER))} > 0"},
              "How many of the loader workers are in each state; ahead is healthy.", stacked=True),
        Panel("timeseries", "Workers that starve", "none", 8,
              {"{{instance}} {{trainer}}": of_chosen(f"gputop_trainer_workers_starving{TRAINER}")},
              "Their trainer waits for them, and something holds them up."),
        Panel("timeseries", "Stragglers", "none", 8, {"{{instance}} {{trainer}}": of_chosen(f"gputop_trainer_straggler{TRAINER}")},
              "1: the other ranks of its job wait for it."),
        Panel("table", "Verdicts", "none", 8, {"now": of_chosen(f"gputop_trainer_verdict_info{TRAINER}")},
              "What is said of each trainer now."),
        Panel("table", "Whose they are", "none", 24, {"trainer": of_chosen(f"gputop_trainer_info{TRAINER}")},
              "Job, pod and user of each trainer."),
    ],
}  # fmt: skip


PRICE = "3"  # of a GPU hour, in any currency, until somebody writes another one; a choice
STEP = "10s"  # between two looks for incidents: an annotation is as exact
INCIDENTS = {
    "name": "Incidents", "enable": True, "hide": False, "iconColor": "red", "datasource": SOURCE, "step": STEP, "useValueForTime": "false",
    "expr": f"sum by (instance, cause, severity) (gputop_incidents{NODE}) > 0",
    "titleFormat": "{{cause}}", "tagKeys": "severity,instance",
    "textFormat": f'<a href="{DOCUMENTATION}causes/{{{{cause}}}}/" target="_blank">what it means, and what to do</a>',
}  # fmt: skip
"""The annotation of the time that incidents last, with what leads to the page about their cause."""


def links(one: Panel) -> list[dict[str, Any]]:
    """What a click on a value leads to: the page about its cause, and what is known of its trainer."""
    text = " ".join([*one.exprs, *one.exprs.values()])
    label = "${__data.fields.%s}" if one.kind == "table" else "${__field.labels.%s}"
    has_trainer = "{{trainer}}" in text or (one.kind == "table" and ("by (instance, trainer" in text or one.title == "Verdicts"))
    has_cause = "{{cause}}" in text or (one.kind == "table" and ("trainer, cause" in text or one.title == "Verdicts"))
    page = {"title": "What this cause means, and what to do", "url": f"{DOCUMENTATION}causes/{label % 'cause'}/", "targetBlank": True}
    kept = "var-datasource=${datasource}&${__url_time_range}"
    row = {
        "title": "This trainer alone",
        "url": f"/d/gputop?var-instance={label % 'instance'}&var-trainer={label % 'trainer'}&{kept}",
    }  # fmt: skip
    return [page] * has_cause + [row] * has_trainer


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
        "annotations": {"list": [INCIDENTS]},
        "links": [{"type": "link", "title": "What the causes mean", "url": f"{DOCUMENTATION}causes/", "targetBlank": True, "icon": "doc"}],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            choice("instance", "Node", "label_values(gputop_node_info, instance)"),
            choice("user", "User", f"label_values(gputop_trainer_info{NODE}, user)"),
            choice("job", "Slurm job", 'label_values(gputop_trainer_info{instance=~"$instance",user=~"$user"}, slurm_job_id)'),
            choice("gpu", "GPU", f"label_values(gputop_gpu_info{NODE}, gpu)"),
            choice("trainer", "Trainer", f"label_values(gputop_trainer_info{CHOSEN.partition('gputop_trainer_info')[2]}, trainer)"),
            {"name": "price", "label": "Price of a GPU hour", "type": "textbox", "query": PRICE,
             "current": {"text": PRICE, "value": PRICE}},
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
    defaults: dict[str, Any] = {"unit": one.unit, "min": 0, "links": links(one)}
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
