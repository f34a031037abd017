"""Files of ranks and of cards: what other users' processes map and have as variables, and what drivers write into /sys."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import msgspec

from gputop.model.frame import Frame, Host, ProcInfo
from gputop.model.parallel import DIMENSIONS, PARTS, parallel_of, sizes_in
from gputop.recording.chunks import Decoder
from gputop.recording.format import pack_frames, pack_header
from gputop.sources.inspector_lines import MOST_KINDS, WORD, Lines, Tallies
from gputop.sources.inspector_text import operations
from gputop.sources.kernel_log import WORDS, error_in
from gputop.sources.nics import MOST_PORTS, Ports
from gputop.sources.procfs.configured import FILE_BYTES
from gputop.sources.procfs.transport import MOST_VARIABLES, VALUE, look
from tests.fuzzing.kind import Kind, changed_text, is_harmless
from tests.recording import made
from tests.sources.fake_nics import BNXT, MLX5, FakeNics

_MAPS = (
    "7f00-7f01 r-xp 00000000 08:01 7          /usr/lib/libnccl.so.2.21.5\n"
    "7f02-7f03 rw-s 00000000 00:1a 8          /dev/shm/nccl-a1b2 (deleted)\n",
    "7f00-7f01 r--p 00000000 08:01 7          /env/site-packages/nvidia/nccl/lib/libnccl.so.2\n",
    "7f00-7f01 r--p 00000000 08:01 7          /opt/rocm/lib/librccl.so.1.0.60300\n",
)  # fmt: skip
_ENVIRON = "NCCL_IB_DISABLE=1\0NCCL_SOCKET_IFNAME=eth0\0PATH=/bin\0RANK=3\0"
_CONFIG = "# all nodes\nNCCL_DEBUG=WARN\nNCCL_IB_HCA = mlx5_0:1\n"
_NAMED = (
    '{"header":{"id":"0xa","comm_name":"DP","rank":%d,"n_ranks":2,"nnodes":1},"metadata":{"pid":7,"hostname":"n"},'
    '"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":64,"coll_exec_time_us":9,"coll_busbw_gbs":1.5}}\n'
)
_TEXT = (
    'nccl_bus_bandwidth_gbs{comm_name="DP",node="n",gpu="GPU%d",nranks="2",n_nodes="1",collective="AllReduce",message_size="1.00MB"} %d\n'
    'nccl_collective_exec_time_microseconds{comm_name="DP",node="n",nranks="2",collective="AllReduce",message_size="1.00MB"} %d\n'
)
_REPORTS = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "eth0: link up",
)  # fmt: skip
_CONFIGURATIONS = (
    "[parallelism]\ntensor_parallel_degree = 2\npipeline_parallel_degree = 4 # x\n", "model:\n  tensor_model_parallel_size: 4\n",
    '{"tensor_parallel": {"autotp_size": 4}, "pipe-parallel-size": 2}',
)  # fmt: skip
_PORT = "4: ACTIVE\x01400 Gb/sec (4X NDR)\x01InfiniBand\x01ib0"
_BETWEEN = b"\x01"


def ranks(rng: random.Random) -> bytes:
    """Maps, environment and settings."""
    return changed_text(rng, "\x01".join((rng.choice(_MAPS), _ENVIRON, _CONFIG)))


def ranks_drive(path: str) -> None:
    """What is found is bounded, harmless, and held by a recording."""
    parts = [*Path(path).read_bytes().split(_BETWEEN), b"", b""][:3]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "root/etc").mkdir(parents=True)
        for name, data in zip(("maps", "environ", "root/etc/nccl.conf"), parts, strict=True):
            (root / name).write_bytes(data)
        found = look(f"{folder}/", f"{folder}/")
    assert len(found.variables) <= MOST_VARIABLES
    assert all(is_harmless(text) and len(text) <= VALUE for text in (*found.variables.values(), *found.variables, found.version))
    _comes_through(Frame(0, made.START_NS, key=True, infos=[ProcInfo(7, 1, transport=found)]))


def ports(rng: random.Random) -> bytes:
    """The descriptions of a port, and its counters."""
    return changed_text(rng, "\x01".join((_PORT, *map(str, rng.choice((MLX5, BNXT)).values()))))


def ports_drive(path: str) -> None:
    """A port's texts are harmless, its numbers counts."""
    state, rate, link, interface, *counts = [*Path(path).read_bytes().split(_BETWEEN), *([b""] * 4)]
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeNics(Path(folder))
        port = fake.port("mlx5_0", "mlx5_core", {})
        for name, data in (("state", state), ("rate", rate), ("link_layer", link), ("gid_attrs/ndevs/0", interface)):
            (port / name).write_bytes(data)
        for name, data in zip((*MLX5, *BNXT), counts, strict=False):
            (port / name).parent.mkdir(exist_ok=True)
            (port / name).write_bytes(data)
        read = Ports(f"{folder}/")
        found = [read.read(t_ns) for t_ns in (0, 1)][-1]
        read.close()
    assert len(found) <= MOST_PORTS
    for one in found:
        values = msgspec.structs.asdict(one)
        assert all(is_harmless(value) for value in values.values() if isinstance(value, str))
        assert all(value >= 0 for value in values.values() if isinstance(value, int))
    _comes_through(Frame(0, made.START_NS, key=True, host=Host(made.START_NS, rdma=found)))


def collectives(rng: random.Random) -> bytes:
    """Files of NCCL's Inspector, of two ranks."""
    return changed_text(rng, "".join(_NAMED % (i % 2, i // 2) for i in range(8)))


def collectives_drive(path: str) -> None:
    """Sums are bounded, texts harmless, and a recording holds them."""
    lines, tallies = Path(path).read_bytes().split(b"\n"), Tallies()
    for number, line in enumerate(lines):
        for one in Lines(7).read([line]):
            tallies.add(1 + number % 2, 0, one, made.START_NS)
    found = [one for kinds in tallies.of.values() for one in kinds.values()]
    assert len(found) <= 2 * MOST_KINDS
    for one in found:
        values = msgspec.structs.asdict(one).values()
        assert all(is_harmless(value) and len(value) <= WORD for value in values if isinstance(value, str))
        assert all(value >= 0 for value in values if isinstance(value, int))
    _comes_through(Frame(0, made.START_NS, key=True, collectives=found))


def _comes_through(frame: Frame) -> None:
    decoder = Decoder()
    assert decoder.feed(pack_header(made.HEADER) + pack_frames([frame]))[1:] == [frame]


def texts(rng: random.Random) -> bytes:
    """Prometheus text of NCCL's Inspector."""
    return changed_text(rng, "".join(_TEXT % (i % 3, i, i) for i in range(6)))


def texts_drive(path: str) -> None:
    """Means are bounded, texts harmless, and a recording holds them."""
    tallies = Tallies()
    for one in operations(Path(path).read_bytes()):
        tallies.add(7, 0, one, made.START_NS)
    found = [one for kinds in tallies.of.values() for one in kinds.values()]
    assert len(found) <= MOST_KINDS
    for one in found:
        values = msgspec.structs.asdict(one).values()
        assert all(is_harmless(value) and len(value) <= WORD for value in values if isinstance(value, str))
        assert all(value >= 0 for value in values if isinstance(value, int))
    _comes_through(Frame(0, made.START_NS, key=True, collectives=found))


def reports(rng: random.Random) -> bytes:
    """Records of the kernel's log."""
    return changed_text(rng, "\x01".join(f"3,{number},{9 * number},-;{rng.choice(_REPORTS)}\n" for number in range(6)))


def reports_drive(path: str) -> None:
    """Errors of the driver are harmless, and a recording holds them."""
    found = [one for record in Path(path).read_bytes().split(_BETWEEN) if (one := error_in(record)) is not None]
    for one in found:
        assert all(is_harmless(text) for text in (one.device, one.text, one.process))
        assert len(one.text) <= WORDS
    _comes_through(Frame(0, made.START_NS, key=True, driver_errors=found))


def configurations(rng: random.Random) -> bytes:
    """Configuration files of trainings."""
    return changed_text(rng, rng.choice(_CONFIGURATIONS))


def configurations_drive(path: str) -> None:
    """Sizes are counts, and divide a training or are none."""
    sizes = sizes_in(Path(path).read_bytes()[:FILE_BYTES])
    assert sizes.keys() <= set(DIMENSIONS)
    assert all(0 < size < 10**6 for size in sizes.values())
    found = parallel_of(["train.py"], 64, sizes)
    assert found is None or {found.part_of(part, 63) for part in PARTS} <= set(range(64))
    _comes_through(Frame(0, made.START_NS, key=True, infos=[ProcInfo(7, 1, group_sizes=sizes)]))


KINDS = (Kind("rank-files", ranks, ranks_drive, 3), Kind("rdma-ports", ports, ports_drive, 3),
         Kind("inspector-lines", collectives, collectives_drive, 3), Kind("inspector-text", texts, texts_drive, 3),
         Kind("kernel-log", reports, reports_drive, 3), Kind("configurations", configurations, configurations_drive, 3))  # fmt: skip
