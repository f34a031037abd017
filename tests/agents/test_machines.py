"""The tools over machines: this one, and hosts, which are recordings that are played."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from gputop.agents import places as places_module
from gputop.agents import tools
from gputop.agents.places import Places
from gputop.commands.replay import sample
from gputop.fleet.jobs import Sight
from gputop.fleet.overview import Overview
from gputop.recording.reader import Recording
from gputop.stream.reach import Target
from gputop.system.errors import UserError
from tests.fleet.test_summary import serving

IN_TROUBLE_S = 12.0  # s from the beginning of the sample, soon after its first trouble began; it lasts for 23 s more


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """This machine, a host whose trouble is played from now on, and one that is none."""
    with Recording(sample()) as recording:
        shift_s = time.time() - IN_TROUBLE_S - recording.unix_ns_of(recording.start_ns) / 1e9
    hosts = [Target("node1", "file", f"{shift_s:.3f}:{sample()}"), Target("node2", "file", "0:/no/such/file")]
    found = Places(hosts=hosts, flags=["--no-ebpf"])
    monkeypatch.setattr(places_module, "LOOK_S", 1.5)
    yield found
    found.close()


def test_this_machine(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tools.call(places, "overview", {"target": "live"})
    assert seen["cpus"] == os.cpu_count()
    assert any(line.startswith("ebpf off") for line in seen["not_measured_untrusted"])
    found = tools.call(places, "query", {"target": "live", "sql": f"SELECT pid FROM process WHERE pid = {os.getpid()}"})
    assert found["rows_untrusted"] == [[os.getpid()]]
    stacks = tools.call(places, "stacks", {"target": "live", "pids": [os.getpid()]})
    assert "test_this_machine" in str(stacks["groups"]) or stacks["groups"][0]["error_untrusted"]
    assert {"host:node1", "host:node2", "hosts", "live"} == set(seen["targets_untrusted"])
    places.rest()
    assert places._live._links is not None
    monkeypatch.setattr(places_module, "IDLE_S", 0.0)
    places.rest()
    assert places._live._links is None


@pytest.mark.parametrize(
    "data", [b"", b"\x91\xc1", b"\x05", b"\x91\x81\xa3pid\xa1x", b"\x91" * 100_000, b"\x91\x81\xa1x" + b"\x91" * 100_000]
)
def test_a_host_that_answers_with_no_stacks_is_named(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(hosts=[Target("node1")])
    monkeypatch.setattr(places.hosts, "ask", lambda _host, _what, take, _pids: take(data))
    with pytest.raises(UserError, match=r"^node1: stacks cannot be read: .+"):
        places.stacks("host:node1", [1])


def test_over_hosts_a_server_has_the_way_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    places, fleet, requests = Places(hosts=[Target("node1")]), Overview(), serving().requests
    assert requests is not None
    fleet.take([Sight("node1", serving())])
    monkeypatch.setattr(places.hosts, "fleet", lambda: fleet)
    told = tools.call(places, "diagnose", {"target": "hosts"})["request_way_untrusted"]
    assert [one.part in str(line) for one, line in zip(requests.way, told, strict=True)] == [True] * len(told)
    assert any("bowtie2 (900)" in str(line) for line in told)


def test_hosts_are_one_target_and_each_is_one(places: Places) -> None:
    assert places.default == "hosts"
    found = tools.call(places, "diagnose", {})
    assert found["cause"] == "cpu-contention"
    assert found["culprits"]
    assert found["next"] == {"tool": "diagnose", "arguments": {"target": "host:node1"}}
    assert any(line.startswith("node2: ") for line in found["not_measured_untrusted"])
    seen = tools.call(places, "overview", {})
    assert {row["target"]: row["does"] for row in seen["nodes"]} == {"host:node1": "troubled", "host:node2": "silent"}
    assert [row["target"] for row in tools.call(places, "ranks", {})["ranks"]] == ["host:node1"]
    alone = tools.call(places, "diagnose", found["next"]["arguments"])
    assert alone["cause"] == "cpu-contention"
    assert alone["fixes"]
    with pytest.raises(UserError, match="name one host"):
        tools.call(places, "series", {"target": "hosts"})
    with pytest.raises(UserError, match="node2: "):
        tools.call(places, "diagnose", {"target": "host:node2"})
