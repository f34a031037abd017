"""The systemd unit and the DaemonSet."""

from __future__ import annotations

import configparser
import re
import subprocess
from typing import Any

import yaml

from gputop.cli import make_parser
from gputop.commands.exporter import PORT
from tests.metrics.prom import PACKAGING
from tests.require import require
from tests.wait import PATIENCE_S

UNIT = PACKAGING / "gputop-exporter.service"
OBJECTS: dict[str, Any] = {one["kind"]: one for one in yaml.safe_load_all((PACKAGING / "kubernetes-exporter.yaml").read_text()) if one}


def test_the_unit_runs_a_command_that_exists():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    words = unit["Service"]["ExecStart"].split()
    assert words[:2] == ["/usr/local/bin/gputop", "exporter"]
    args = make_parser("exporter")[0].parse_args(words[2:])
    assert args.listen == ("127.0.0.1", PORT)


def test_the_unit_is_kept_from_what_it_does_not_need():
    """As systemd rates it: 10 is a service of root's without a sandbox. The rest is said in the unit."""
    require("systemd")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(level) <= 4.0, done.stdout
    done = subprocess.run(["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    faults = [line for line in done.stderr.splitlines() if "is not executable" not in line and "'man " not in line]
    assert faults == []


def test_the_daemonset_runs_a_command_that_exists():
    pod = OBJECTS["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:2] == ["gputop", "exporter"]
    args = make_parser("exporter")[0].parse_args(container["command"][2:])
    assert args.listen == ("", PORT) == ("", container["ports"][0]["containerPort"])
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in container["env"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": container["ports"][0]["name"]}
    assert pod["hostPID"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert all(one["readOnly"] for one in container["volumeMounts"] if one["name"] != "tmp")


def test_the_daemonset_has_no_right_in_the_cluster():
    spec = OBJECTS["DaemonSet"]["spec"]
    assert spec["template"]["spec"]["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert not spec["template"]["spec"]["automountServiceAccountToken"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    (bound,) = OBJECTS["RoleBinding"]["subjects"]
    assert bound["name"] != OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert [verb for rule in OBJECTS["Role"]["rules"] for verb in rule["verbs"]] == ["get", "list", "watch"]
    assert {one["metadata"].get("namespace", "gputop") for one in OBJECTS.values()} == {"gputop"}
