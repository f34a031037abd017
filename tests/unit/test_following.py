"""Following a stream: what goes on behind a header that comes again, and what begins anew."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.findings.policy import FEED_EVERY_NS
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.stream.following import Following
from tests.unit.diagnosis.scene import Scene, training
from tests.unit.diagnosis.test_engine import contended


def frames(scene: Scene, seconds: float) -> list[Frame]:
    made = [scene.next_frame(0.1) for _ in range(round(10 * seconds))]
    made[0].key = True
    return made


def test_the_engine_is_fed_at_its_pace_and_the_board_holds_all() -> None:
    scene, following = contended(), Following()
    fed = [following.take(one) for one in [scene.board.header, *frames(scene, 6)]]
    assert 11 <= sum(fed) <= 13
    assert following.board.procs[900].t_ns == following.board.t_ns
    assert following.engine.verdict.cause == "cpu-contention"


def test_who_reads_seldom_feeds_seldom() -> None:
    scene, following = contended(), Following(every_ns=4 * FEED_EVERY_NS)
    following.restate(scene.board.header)
    assert len(list(following.through(frames(scene, 8)))) in (4, 5)


@pytest.mark.parametrize(("boot_id", "goes_on"), [("same", True), ("another", False)])
def test_the_diagnosis_goes_on_while_the_boot_is_the_same(boot_id: str, goes_on: bool) -> None:
    scene, following = contended(), Following(keeps_past=True)
    header = replace(scene.board.header, boot_id="same", slept=((0, 0), (1, SECOND_NS)))
    assert not following.restate(header)
    for frame in frames(scene, 6):
        following.take(frame)
    engine, [incident] = following.engine, following.engine.incidents
    assert following.restate(replace(header, boot_id=boot_id, t_ns=scene.board.t_ns, slept=((0, 0),))) is not goes_on
    assert (following.engine is engine) is goes_on
    assert (incident in following.engine.incidents) is goes_on
    assert following.board.seq == -1, "the readings are those of another collector"
    assert following.past.before(following.board, SECOND_NS) is following.board
    assert following.header is not None
    assert (len(following.header.slept) == 2) is goes_on, "what is known of the clock's sleeps is kept"


def test_a_clock_that_jumped_leaves_the_readings() -> None:
    scene, following = training(), Following()
    header = Header(boot_id="b", unix_ns=SECOND_NS)
    following.restate(header)
    for frame in frames(scene, 1):
        following.take(frame)
    board = following.board
    following.restate(replace(header, unix_ns=9 * SECOND_NS))
    assert following.board is board
    assert following.board.header.unix_ns == 9 * SECOND_NS
