"""Every threshold of the diagnosis, once: value, unit, meaning, source. Bounds of memory, and paces, stand where they are used."""

from __future__ import annotations

WINDOW_NS = 2_500_000_000  # ns; long enough to distinguish shares by samples, short enough for a verdict 3 s after its cause began
TICK_SLACK_NS = 50_000_000
"""ns. Feeds come on whole ticks: a tick's lateness of microseconds must not decide whether one more feed belongs to the window."""
FEED_EVERY_NS = 500_000_000
"""ns from one feed to the next: twice a second, as often as a column of the lanes ends at the usual time base. Feeds follow the clock, so
that every reader that comes to a moment has fed at the same moments before it."""
SETTLED_NS = 5_000_000_000  # ns for which all jobs kept symptom and cause, from which they are judged when something moves
SELDOM_NS = 2_000_000_000 - TICK_SLACK_NS  # ns from one judgement to the next of settled jobs without a move, at most
MOVES = 0.08  # of the window, by which a share leaves its bounds: a total change is seen within half a second (2.5 s × 0.08 = 0.2 s)
SWINGS_NS = 10_000_000_000  # ns for which bounds are remembered: several steps of a slow job
TrainerKey = tuple[int, int]  # (pid, start in clock ticks): a pid alone may be reused
EARLIER: TrainerKey = (0, 0)  # key of the ledger that is the sum of trainers that ended long ago
NOBODY: TrainerKey = (0, 1)  # key of the ledger with the seconds of lost GPUs that no trainer has

TRIFLE = 0.005  # of the window: less is no edge (samples of 100 ms over 2.5 s resolve 4 %, counters much less)
HALF = 0.5  # of a whole: the greater part
HARDLY, LITTLE, TENTH, FIFTH, QUARTER, SOME, MOST = 0.02, 0.05, 0.1, 0.2, 0.25, 0.3, 0.7  # of a whole or of a CPU: words for shares
NEARLY_ALL = 0.9  # of a whole: a process that waits, is ahead, polls or spins for so much does nothing else
SEVERAL = 2  # processes that do the same, from which it is no accident
OFTEN = 4  # looks, samples, steps or pauses in a row that are no coincidence (guess)
FAULTS_PER_S = 100  # major faults a second from which pages come back from swap, or are read again (guess)
TOLD_FAULTS_PER_S = 10  # major faults a second that are worth reporting
REFAULTS_PER_S = 500.0  # pages a second of the host's workingset, or a full cgroup's, read again soon after they were dropped (guess)
LOST = 0.12  # of the window, or of the job's CPUs: less is no loss, no wait, no rest (TraceML: input wait warns at 10 %, critical at 20 %)
NEAR = 0.2  # of the loss, by which a cause must hold more than the next one; nearer, both stand (a third is right, learn half)
TRACE_STANDS_NS = 600_000_000_000  # ns for which a trace of torch.profiler is held beside the verdict: a phase of a training (guess)
DOUBT_LEFT = 0.5  # of the doubt about a verdict that torch's own trace agrees with; and of the confidence, where the two disagree (guess)
UNLEARNT = 0.65  # most confidence in a job of a kind that is rare in the corpus (measured on jobs that no rule has met: 0.61 were right)
NAMED = 0.35  # of the loss that a cause must hold to be named (guess)
YOUNG_NS = 2_000_000_000  # ns that a worker or program starts for (interpreter, imports: torch takes 1 to 2 s, measured), or ends
DEEP = 4  # threads of one process that a walk follows one after the other
STUCK_S, LONG_STUCK_S = 2.0, 3.0  # s without a move while GPUs rest as long, and while they work: no process at work does so
CROWD = 2  # runnable workers for each CPU
GIL_CPUS = 1.15  # CPUs used together by threads or workers that take turns: at one GIL, or at one server

# Workers that hang, or are replaced
NAPPED_S = 4.0  # s without a move of a pool that naps, of ranks in a collective, or at a prompt: no transform sleeps so long (guess)
FORMER_NS = 5_000_000_000  # ns since the last birth, and a window (2.5 s), in which a loss belongs to the start

# pause
PAUSE_S = 0.7  # s that GPUs rest, or have little work, at one go after steady work (guess: longer than a step that waits)
BREAK_NS = 450_000_000  # ns of full work, or of rest, at one go, which no GPU has within a step that waits
SAVED_BYTES_PER_S = 50e6  # B/s that a trainer writes which saves its weights now and then; logs and samples are less

# small-kernels
LAUNCH_COST_S, LIGHT_COST_S = 25e-6, 200e-6  # s that a launch takes (H200, with PyTorch's part), and with what is done for light kernels

# kv-full
PUSHED_PER_MIN = 30  # requests a minute that lose their memory, from which it was full, whatever is free at the moment (guess)

# slow-wire, pcie-degraded
RESENT_PER_S = 10.0  # TCP segments, or packets of a PCIe link, sent again a second that are worth reporting (guess: sound ones: hardly any)

# link-errors
LINKS_NS = 60_000_000_000  # ns over which links' counters are added up, and without growth after which they rest (DCGM's health watch)
LINK_RECOVERIES = 1.0  # times a minute that an NVLink is trained again (DCGM's health watch: one is a failure; marin#9086: 505 in 5 days)
LINK_CRC_ERRORS = 6000.0  # packets a minute with a wrong checksum (DCGM: CRC errors "only matter at rates of 100+ per second")
LINK_REPLAYS = 9.0  # packets a minute sent again (DCGM warns of a PCIe link above 8 a minute; of an NVLink a guess)

# h2d-transfer
SMALL_BYTES = 256 << 10  # bytes of a copy, up to which the number of copies determines the cost (guess)
PAGEABLE_BYTES_PER_S = 6e9  # B/s of copies from memory that is not pinned, which a CPU copies first (guess: a thread's memcpy)
COPY_OF_LINK = 0.8  # part of a PCIe link's bytes that copies from page-locked memory beside it reach (bandwidthTest: 0.8 to 0.9)
CPU_COPY_PART = 0.4  # part of the time of a CPU's copy that memory of another node costs at most (guess: 60 % of a near node's bandwidth)

# sync-storm
TURN_S = 1e-3  # s of the main thread's own time for each wait, that it costs at most (measured: storms have 0.02 to 0.3 ms; steps 1 ms up)
SHORT_TURN_S = 2e-4  # s, like `TURN_S`, for each call that waits, however shortly (guess)
SYNCS_PER_S = 400.0  # waits, or copies, a second that are many: from these on the wake-up after each costs as well, where CPUs are busy
PER_STEP = 12.0  # sleeps per batch that are many: any step has some
WRITTEN_BYTES = 1024.0  # bytes to storage for each sleep: it syncs a file

# Facts of the window: processes and CPUs
ASKS_PER_S = 3.0  # wakes a second above any heartbeat's, also of threads that poll for the main thread's requests (guess)
FAULT_S, COPIED_BYTES_PER_S = 1e-6, 2e9  # s in the kernel for a minor fault, and B/s that it copies, about (guess: a fast and a slow CPU)
GIL_HELD_S = 0.002  # s, the shortest mean sleep until the GIL is handed on: a holder that waits itself hands it on sooner (guess)
GIL_S = 0.007  # s, the longest mean sleep in a wait for Python's GIL: its 5 ms (`sys.getswitchinterval`), and the time to wake up
AT_WORK = 0.25  # CPUs from which threads or programs other than the main thread are at work
READ_BYTES = 1 << 20  # bytes from storage in a window, from which sleeps too short to be met were at the disk (guess)
GROWN_BYTES, MOVED_BYTES_PER_S = 64 << 20, 2e6  # bytes of memory, grown or free to swap, and B/s of a disk or network, worth naming
LEAD_NS = 5_000_000_000  # ns for which prefetched batches and idle CPUs hide the effect of a process that has begun to run
SHORT_LIVED_NS = 5_000_000_000  # ns of life, up to which everything a program or cgroup did counts as recent
WATCHED_S = 1.0  # s: a process that was seen for less is not judged
FRESH_NS = 1_500_000_000  # ns since its birth, or its pool's, in which a process first seen is new (roles are found once a second)
GAP_NS = 5_000_000_000  # ns between two boards, from which the window begins again
BIRTHS_NS = 30_000_000_000  # ns for which births of workers, and paces outside births, are remembered

# Facts of the window: GPUs, calls, steps
PACING_BYTES_PER_S = 5e7  # B/s over a GPU's link, both ways, from which they are its job's: 4 to 7 MB/s at rest (H200, measured)
LIGHT_SM = 0.4  # of the SMs, up to which kernels are light (DCGM: under a half is "ineffective"; KempnerPulse: under a quarter)
IDLE_POWER = 0.15  # of the power limit, drawn by a GPU with a context and no work (H100 and H200: 70 to 115 of 700 W)
SLOW_CLOCK = 0.85  # of the highest SM clock, under which it is held down; boost moves within the rest
STALE_NS = 3_000_000_000  # ns since a GPU was read, a process born or the first look, after which that is out of date
STEADY_NS = 1_000_000_000  # ns that a GPU works or rests, or that workers work alone: that is steady; less is a step or a blink (guess)
READING_NS = 1_000_000_000  # ns that NVML's utilization may cover, and without a reading, after which the GPU's state is unknown
GENERATIONS_NS = 30_000_000_000  # ns in which a PCIe link that is used reaches its generation; at rest it is lowered to save power
RATES_NS = 9_000_000_000  # ns for which the driver's PCIe rates, of 20 ms each and two seconds apart, are looked at together
LAUNCH_S = 4e-6  # s of CPU that a launch takes, about, where it is not counted but its share of the time is known
BURST_SPAN_NS = 200_000_000  # ns of a burst of launches, at most: launches before the first look do not count
LEAST_SAMPLED_NS = 100_000_000  # ns sampled in the window, at least; with fewer all samples so far count
SLOWEST_NS_PER_BYTE, SLOWEST_NS = 10.0, 50_000  # ns of a copy, a byte (100 MB/s: under a lane of PCIe 1) and besides; more is a wait
LEAST_POINTS = 80  # readings of 100 ms for a rhythm
LEAST_LAG, TOLD_LAG = 3, 7  # readings of 100 ms in a period, at least; and from which the period is one step, no beat of several
LEAST_SWING_PCT = 60.0  # per cent of utilization from low to high; steps faster than a reading swing less, and come around more slowly
SWAYS_PCT = 2.0  # per cent of utilization, standard deviation, from which readings move; they are rounded to 1
SAME_RATE = 1.5  # times as often, up to which calls of several kinds come together, and a rhythm is that of the waits
MOST_COPIES = 4  # copies per synchronize in one step, at most; more means that the synchronize is a log line
SLOWEST_STEP_PER_S, FASTEST_STEP_PER_S = 0.2, 500.0  # steps a second, at least and at most
UPDATED_BYTES_PER_S = 50e6  # B/s to the GPU and back that are gradients and weights if much is computed between the copies (guess)
BOTH_WAYS_BYTES_PER_S = 200e6  # B/s to the GPU and back that are gradients and weights, each in many copies
ALONE_PER_S = 5.0, 150.0  # synchronizes a second without copies: fewer are log lines or epochs, more a storm

# Starts, pauses and signs of life
WARM_UP_NS = 30_000_000_000  # ns that a start, or loading after a rest, takes at most: until its GPU works, and from then on
BEGINS_S = 300.0  # s that the longest start may take: imports, weights, compiling (guess)
LOADS_NS = 5_000_000_000  # ns that a start may wait for a disk before it counts as lost: 15 GB (7e9 weights of 2 bytes) at 3 GB/s
BATCH_NS = 500_000  # ns of CPU, least that a worker takes for a batch; a look at its queue takes a tenth
STEPS_NS = 30_000_000_000  # ns in which a GPU that begins to work `OFTEN` times makes steps, and not only occasional work (guess)
LOST_NS, STILL_NS = 300_000_000, 150_000_000  # ns lost, or without a CUDA call, in a break at least; ns among these without any work
REMEMBERED_NS = 600_000_000_000  # ns for which pauses are remembered, to find repeated ones
BURST_NS = 10_000_000  # ns of CPU of a main thread from one look to the next that no heartbeat takes (torch's takes 0.2 ms)
OTHERS_BURST_NS = 100_000_000  # ns of CPU of other threads and of programs, counted in ticks of 10 ms, that no heartbeat takes
IO_BYTES_PER_S = 1_000.0  # B/s: reads and writes beyond that are work; watchdogs move a few bytes

# Incidents
HUNG_S = 5.0  # s without a sign of life of a job, or of a pool with late births: torch's queues look every 5 s for their loader
FAR_S = 30.0  # s, like `HUNG_S`, if something unseen may be at work: ranks on other hosts, a GPU without readings (guess)
AT_END = 0.98  # lost share of a trainer's GPU seconds from which nothing ran: it ends, or makes no steps yet
AWAY_NS = 4_000_000_000  # ns that a cause may be absent (a checkpoint, an epoch's end), and unexplained loss must last: windows overlap
FULL_S = 2.0  # s of a window; a shorter one makes a verdict less sure (guess)
BEGIN_LOST_S = 0.6  # GPU seconds that a cause must have cost, and a tenth of its time, to begin an incident
MEDIUM_S, HIGH_S = 2.0, 10.0  # GPU seconds lost from which an incident is of medium and high severity, if a share of its time is, too
PATIENCE_NS = 8_000_000_000  # ns after its trainer's end within which a worker still ends by itself
REACH = 10.0  # times as far ahead as memory has been seen to grow, its end may lie (a choice)
GROWS_AFTER_NS = 10_000_000_000  # ns of life; a younger process imports, opens and fills its buffers
HIGH_LEFT_S, MEDIUM_LEFT_S = 600.0, 3600.0  # s until memory is full, under which severity is high, medium
