"""The real Prometheus: it takes what is exported, rules and panels find what they ask for, and lost seconds are those of the ledger."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

import promql_parser
import pytest
import yaml

from gputop.metrics.metered import Metered
from gputop.metrics.prometheus import Pages
from gputop.metrics.registry import METRICS
from gputop.metrics.server import Server
from gputop.model.frame import Frame
from gputop.stream.following import Following
from gputop.system.program import DOCUMENTATION
from tests.metrics.made import contended_server, played, run_of, take
from tests.metrics.prom import PACKAGING, ROOT, RULES, Prometheus, prometheus, promtool
from tests.require import require
from tests.wait import PATIENCE_S, until

DASHBOARD = PACKAGING / "grafana/gputop.json"
MODEL = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in MODEL["panels"] if panel["type"] != "row"]
EXPRS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
NOTES = [(note["name"], note["expr"]) for note in MODEL["annotations"]["list"]]
VARIABLES = {one["name"]: one for one in MODEL["templating"]["list"]}
NAMES = {metric.full_name for metric in METRICS}


def filled(expr: str, span: str) -> str:
    """An expression as Grafana sends it when all nodes, users, jobs, GPUs and trainers are chosen."""
    given = {"$__rate_interval": span, "$__range": span, "$price": VARIABLES["price"]["query"]}
    for variable, value in (given | {f"${name}": ".*" for name in ("instance", "user", "job", "gpu", "trainer")}).items():
        expr = expr.replace(variable, value)
    assert "$" not in expr
    return expr


def test_the_text_passes_promtools_check():
    require("prometheus")
    metered = played(contended_server(), Metered(), 5)
    promtool("check", "metrics", given=Pages(metered).page()[0])


PLAIN, OPEN = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", PLAIN), ("*/*", PLAIN),
        ("text/plain;version=1.0.0;escaping=values", PLAIN), ("text/plain, application/openmetrics-text", OPEN),
        ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5", OPEN),
        ("application/openmetrics-text; version=0.0.1", PLAIN), ("application/openmetrics-text; version=x", PLAIN),
        ("application/openmetrics-text;version=," * 100, PLAIN),
    ],
)  # fmt: skip
def test_who_asks_for_a_format_gets_it(accept: str, kind: str):
    pages = Pages(played(contended_server(), Metered(), 1))
    text, content_type = pages.page(accept)
    assert content_type.startswith(kind)
    assert text.endswith(b"# EOF\n") == ("openmetrics" in kind)


def test_a_reading_is_four_texts_at_most_whatever_clients_ask_for():
    pages = Pages(played(contended_server(), Metered(), 1))
    for number in range(100):
        pages.page(f"application/openmetrics-text; version=1.{number}.0", number % 2 == 0)
        pages.page(f"text/plain; version={number}.0; escaping=values", number % 2 == 0)
    assert len(pages._made) == 4


def test_rules_pass_promtools_checks():
    require("prometheus")
    promtool("check", "rules", RULES)
    promtool("test", "rules", PACKAGING / "prometheus/rules.test.yml")


def test_rules_and_panels_ask_for_metrics_that_there_are():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    asked = [rule["expr"] for rule in rules] + [filled(expr, "1m") for _, expr in [*EXPRS, *NOTES]]
    for expr in asked:
        promql_parser.parse(expr)
    recorded = {rule["record"] for rule in rules if "record" in rule}
    assert set(re.findall(r"\bgputop_\w+", " ".join(asked))) <= NAMES | {name.partition(":")[2].partition(":")[0] for name in recorded}
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    of_links = {"LinkFlaps", "NvlinkRecovers", "GpuLinkReplays", "LinkErrors", "LinkCongested"}
    assert alerts == {"TrainingStarves", "Straggler", "HungCollective", "GpuLost", "Throttled", "ExporterBlind", "NodeSilent", *of_links}


def test_dashboard_and_table_are_fresh():
    done = subprocess.run([sys.executable, ROOT / "scripts/dashboard.py", "--check"], timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, "make manual writes it anew"


def test_the_dashboard_fits_any_grafana():
    """The rules of grafana/dashboard-linter that matter: a variable for the data source, $__rate_interval, units and titles."""
    assert list(VARIABLES) == ["datasource", "instance", "user", "job", "gpu", "trainer", "price"]
    assert [row["title"] for row in MODEL["panels"] if row["type"] == "row"] == ["Fleet", "Node", "Trainer"]
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) == len({panel["id"] for panel in PANELS})
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert not re.search(r"(rate|irate)\([^()]*\[(?!\$__rate_interval)", target["expr"])
            assert "instance=~" in target["expr"]


def test_variables_ask_for_labels_that_there_are():
    labels = {metric.full_name: {*metric.labels, "instance"} for metric in METRICS}
    for name, one in VARIABLES.items():
        if one["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", one["query"]["query"])
            assert found, name
            assert found[2] in labels[found[1]], name
            before = list(VARIABLES)[: list(VARIABLES).index(name)]
            assert set(re.findall(r"\$(\w+)", one["query"]["query"])) <= set(before), "Grafana asks for them in their order"


def test_titles_cannot_be_mixed_up():
    """No two are the same words in another order, and none is a part of another in the same row."""
    words = [frozenset(re.findall(r"\w+", panel["title"].lower())) - {"the", "of", "in", "by"} for panel in PANELS]
    assert len(set(words)) == len(words)
    assert not any({"lost", "gpus"} == set(one) for one in words), "lost to a cause, or off the bus?"


def test_what_names_a_cause_leads_to_its_page():
    shown = {panel["title"]: [link["url"] for link in panel["fieldConfig"]["defaults"]["links"]] for panel in PANELS}
    for title, expr in EXPRS:
        panel = next(panel for panel in PANELS if panel["title"] == title)
        if "cause" in panel["targets"][0]["legendFormat"] or (panel["type"] == "table" and "by (instance, trainer, cause)" in expr):
            assert any(url.startswith(f"{DOCUMENTATION}causes/${{__") for url in shown[title]), title
    assert any("var-trainer=${__data.fields.trainer}" in url for url in shown["Trainings that lose most"])
    assert all(f"{DOCUMENTATION}causes/{{{{cause}}}}/" in note["textFormat"] for note in MODEL["annotations"]["list"])


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in MODEL["panels"]:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert grid["x"] + grid["w"] <= 24
        assert not cells & taken
        taken |= cells


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the rules, that has scraped a node for some seconds."""
    require("prometheus")
    scene, metered, over = contended_server(), Metered(), threading.Event()
    played(scene, metered, 12)

    def go_on() -> None:
        while not over.wait(0.5):
            played(scene, metered, 0.5)

    server = Server("127.0.0.1", 0, Pages(metered).page, healthy=lambda: True)
    going = threading.Thread(target=go_on)
    going.start()
    try:
        scrape = {"job_name": "gputop", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
        with prometheus(tmp_path_factory.mktemp("prometheus"), scrape, RULES) as one:
            until(lambda: one.ask("count_over_time(gputop_node_info[1m]) >= 6"))
            yield one
    finally:
        over.set()
        going.join()
        server.close()


def test_prometheus_takes_all_of_it(scraped: Prometheus):
    [target] = scraped.targets()
    assert (target["health"], target["lastError"]) == ("up", "")
    assert 100 < float(scraped.ask('scrape_samples_scraped{job="gputop"}')[0]["value"][1]) < 700
    assert float(scraped.ask("scrape_samples_scraped - scrape_samples_post_metric_relabeling")[0]["value"][1]) == 0.0


def test_no_panel_is_empty(scraped: Prometheus):
    assert [title for title, expr in [*EXPRS, *NOTES] if not scraped.ask(filled(expr, "20s"))] == []


def test_an_incident_is_an_annotation_with_its_cause(scraped: Prometheus):
    [(_, expr)] = NOTES
    assert {one["metric"]["cause"] for one in scraped.ask(filled(expr, "20s"))} == {"cpu-contention"}


@pytest.mark.parametrize(("variable", "own"), [("user", "ana"), ("gpu", "0")])
def test_a_choice_leaves_what_is_not_chosen_out(variable: str, own: str, scraped: Prometheus):
    """Panels that ask by a variable are as before for its own value, and empty for another."""
    asking = [(title, expr) for title, expr in EXPRS if f'"${variable}"' in expr]
    assert len(asking) > 5
    for title, expr in asking:
        alone, other = (filled(expr.replace(f'"${variable}"', f'"{value}"'), "20s") for value in (own, "nobody"))
        assert scraped.ask(alone), title
        assert not scraped.ask(other), title


ASKED = re.findall(r"^## \d+\. (.+?)$.*?^```promql\n(.*?)^```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL | re.MULTILINE)
MAY_BE_EMPTY = {"Which GPUs are held and not used?", "Which GPUs are held back by heat or power?", "What was not seen?",
                "Which rank holds its job most often, and why there?"}  # fmt: skip


@pytest.mark.parametrize(("question", "expr"), ASKED, ids=[question for question, _expr in ASKED])
def test_a_question_to_a_fleet_has_an_answer(question: str, expr: str, scraped: Prometheus):
    assert set(re.findall(r"gputop_\w+", expr)) <= NAMES
    assert scraped.ask(expr) or question in MAY_BE_EMPTY


def test_rules_record_on_it(scraped: Prometheus):
    lost = 'instance_trainer_cause:gputop_gpu_lost:ratio_rate5m{cause="cpu-contention"}'
    until(lambda: scraped.ask(lost))
    assert {0.3 < float(one["value"][1]) < 0.5 for one in scraped.ask(lost)} == {True}
    assert scraped.ask('job_cause:gputop_gpu_lost_hours:increase1h{user="ana",program="train.py"} > 0')
    assert scraped.ask('ALERTS{alertname="TrainingStarves",alertstate="pending"}')
    assert not scraped.ask('ALERTS{alertname!="TrainingStarves"}')


RUNS = ("cpu-contention", "disk-io", "main-thread-augment", "straggler-cpu-average", "hung-worker", "h2d-transfer")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, dict[str, float]]]:
    """A Prometheus that holds recorded runs as it would have scraped them each second, and when each ended."""
    require("prometheus")
    folder, lines, ends = tmp_path_factory.mktemp("prometheus"), [], {}
    for number, workload in enumerate(RUNS):
        lines += [*scrapes_of(workload, began_s := time.time() - 3600.0 * (number + 1), ends)]
        assert ends[workload] > began_s
    heads = sorted({line.split("{")[0].removesuffix("_total") for line in lines})
    text = [line for head in heads for line in [f"# TYPE {head} counter", *(one for one in lines if one.startswith(f"{head}_total{{"))]]
    (folder / "told.om").write_text("\n".join([*text, "# EOF\n"]))
    promtool("tsdb", "create-blocks-from", "openmetrics", folder / "told.om", folder / "data")
    with prometheus(folder) as one:
        yield one, ends


def scrapes_of(workload: str, began_s: float, ends: dict[str, float]) -> Iterator[str]:
    """The lines of its counters of lost seconds, each second from before it began."""
    metered, next_ns, seconds = Metered(), 0, 0
    items = run_of(workload)
    for item in [*items, None]:
        if item is None:
            metered.end()
        else:
            take(metered, item)
        if item is None or (isinstance(item, Frame) and item.t_ns >= next_ns):
            next_ns, seconds = metered.board.t_ns + 10**9, seconds + 1
            ends[workload] = began_s + seconds
            for line in Pages(metered).page()[0].decode().splitlines():
                if line.startswith("gputop_trainer_gpu_lost_seconds_total{"):
                    name, _, value = line.rpartition(" ")
                    yield f'{name[:-1]},instance="{workload}"}} {value} {ends[workload]:.3f}'


@pytest.mark.parametrize("workload", RUNS)
def test_the_increase_of_lost_seconds_is_what_explain_says(workload: str, told: tuple[Prometheus, dict[str, float]]):
    one, ends = told
    following = Following()
    deque(following.through(run_of(workload)), maxlen=0)
    ledger = following.engine.explain().ledger.by_cause
    assert ledger, "it lost something"
    lost = f'gputop_trainer_gpu_lost_seconds_total{{instance="{workload}"}}[10m]'
    grown = f"sum by (cause) (max_over_time({lost}) - min_over_time({lost}))"
    found = {sample["metric"]["cause"]: float(sample["value"][1]) for sample in one.ask(grown, ends[workload] + 1.0)}
    for cause, lost_s in found.items():
        assert lost_s == pytest.approx(ledger.get(cause, 0.0), rel=0.02, abs=0.2), cause
    assert set(ledger) <= set(found)
