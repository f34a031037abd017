"""The vocabulary: what the collector read in one beat.

A frame holds *raw cumulative counters* and gauges as their sources give them; rates, roles, states and verdicts are derived on read. It
holds only what was read in its tick: a reading that it lacks still stands (see `gputop.model.board`). A *key* frame holds everything, so
that a reader may begin there.

Rules for growth, so that old recordings open for ever:
* structs marked ``array_like`` grow at their end, and every new field has a default;
* the other structs are maps: fields may be added anywhere, with a default; none is renamed or given another meaning.

Structs are immutable and without reference cycles, so the garbage collector does not track them (``gc=False``): at ten frames a second that
would cost as much as reading them.

All times named ``t_ns`` are CLOCK_MONOTONIC in ns. ``None`` means "not measured"; if that lasts, ``missing`` or the source's state has the
reason.
"""

from gputop.model.frame.beat import Frame as Frame
from gputop.model.frame.bounds import MOST_IN_FRAME as MOST_IN_FRAME
from gputop.model.frame.gpu import PART as PART
from gputop.model.frame.gpu import SILENT as SILENT
from gputop.model.frame.gpu import Gpu as Gpu
from gputop.model.frame.gpu import GpuProc as GpuProc
from gputop.model.frame.gpu import GpuReading as GpuReading
from gputop.model.frame.gpu import MigInstance as MigInstance
from gputop.model.frame.gpu import compute_pids as compute_pids
from gputop.model.frame.gpu import forget_parts as forget_parts
from gputop.model.frame.gpu import link_bytes_per_s as link_bytes_per_s
from gputop.model.frame.gpu import sizes_of_contexts as sizes_of_contexts
from gputop.model.frame.machine import CgroupSample as CgroupSample
from gputop.model.frame.machine import CpuSample as CpuSample
from gputop.model.frame.machine import DiskSample as DiskSample
from gputop.model.frame.machine import FileSystem as FileSystem
from gputop.model.frame.machine import Hardware as Hardware
from gputop.model.frame.machine import Host as Host
from gputop.model.frame.machine import NetSample as NetSample
from gputop.model.frame.machine import Nic as Nic
from gputop.model.frame.machine import Psi as Psi
from gputop.model.frame.machine import ReadLimit as ReadLimit
from gputop.model.frame.probes import CudaCall as CudaCall
from gputop.model.frame.probes import LaunchRate as LaunchRate
from gputop.model.frame.probes import MainSamples as MainSamples
from gputop.model.frame.probes import Preempt as Preempt
from gputop.model.frame.probes import Probes as Probes
from gputop.model.frame.probes import SchedThread as SchedThread
from gputop.model.frame.probes import Wakeup as Wakeup
from gputop.model.frame.process import ProcInfo as ProcInfo
from gputop.model.frame.process import ProcSample as ProcSample
from gputop.model.frame.process import Stack as Stack
from gputop.model.frame.process import ThreadInfo as ThreadInfo
from gputop.model.frame.process import ThreadSample as ThreadSample
from gputop.model.frame.stream import FORMAT_MAJOR as FORMAT_MAJOR
from gputop.model.frame.stream import FORMAT_MINOR as FORMAT_MINOR
from gputop.model.frame.stream import Header as Header
from gputop.model.frame.stream import Mark as Mark
from gputop.model.frame.stream import SelfCost as SelfCost
from gputop.model.frame.stream import SourceState as SourceState

SECOND_NS = 1_000_000_000
