"""What is known of a stream: the past beyond a restart, and who is who then."""

from __future__ import annotations

from gputop.frame import Frame
from gputop.frame import Gpu
from gputop.frame import GpuProc
from gputop.frame import Header
from gputop.frame import ProcInfo
from gputop.session import Session

SECOND = 1_000_000_000


def test_behind_a_restart_of_the_collector_nothing_can_be_looked_at():
    session = Session()
    for start_s in (1, 21):
        session.ingest(Header(boot_id="same", t_ns=start_s * SECOND))
        for n in range(10):
            session.ingest(Frame(n, (start_s + n) * SECOND, key=n == 0))
    assert session.history.times[0] == SECOND
    assert session.oldest_ns == 21 * SECOND
    assert session.board_at(session.oldest_ns).seq == 0
    assert session.board_at(5 * SECOND).seq == -1


def test_who_only_draws_is_no_trainer_of_the_past_either():
    session = Session()
    session.ingest(Header())
    infos = [ProcInfo(7, 1, comm="Xorg", uses_cuda=False), ProcInfo(8, 1, comm="python", cmdline=["python", "train.py"], uses_cuda=True)]
    gpu = Gpu(0, SECOND, procs=[GpuProc(7, "G"), GpuProc(8, "C+G")])
    session.ingest(Frame(0, SECOND, key=True, infos=infos, gpus=[gpu]))
    session.ingest(Frame(1, 2 * SECOND))
    assert {pid: role.kind for pid, role in session.roles_at(session.board_at(SECOND)).items()} == {8: "trainer"}
    assert session.roles_at(session.board_at(SECOND)) == session.roles_at(session.board)
