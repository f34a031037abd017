"""Every threshold of the diagnosis, once: value, unit, meaning, source. What bounds memory or sets a pace stands where it is used."""

from __future__ import annotations

TRIFLE = 0.005  # of the window: less is no edge (samples of 100 ms over 2.5 s tell 4 %, counters much less)
HALF = 0.5  # of a whole: most of it
HARDLY, LITTLE, TENTH, FIFTH, QUARTER, SOME, MOST = 0.02, 0.05, 0.1, 0.2, 0.25, 0.3, 0.7  # of a whole or of a CPU: words for shares
NEVER_SLEEPS = 0.055  # of the window: what looks like sleep for the GPU of one that spins for it (guess: a sample or two of 25)
SWAPPED_PER_S, THRASHED_PER_S = 100, 50  # major faults a second from which pages come back from swap, or are read again (guess)
REFAULTS_PER_S = 500.0  # of the host's workingset, a second, from which pages are read again soon after they were dropped (guess)
DATA_WAIT = 0.15  # of the window: a trainer that waits for data for less is not waiting (TraceML warns from 10 %, critical from 20 %)
LEAST_S = 0.4  # s: seen for shorter, as in a single look, nobody is said to starve, or not to
SPINNING = 0.95  # of the window on a CPU of one that spins for its GPU
YOUNG_NS = 2_000_000_000  # ns that a worker starts for: interpreter, imports, first batch (measured: torch takes 1 to 2 s)
DEEP = 4  # threads of one process that a walk follows one after the other
BEHIND = 0.35  # of its waits for a CPU behind strangers (probe), from which they are to blame
SPARE = 0.4  # CPUs that idle, less a fifth for the trainer; a tenth will do where some workers get no work
STUCK_S, LONG_STUCK_S, RESTS_S = 2.0, 3.0, 1.5  # s without a move beside GPUs that rest so long, and beside others: no slow worker does
SATURATED = 0.15  # of the window without work for a GPU that always works
AT_LIMIT = 0.8  # of what a cgroup may read from a device, from which its workers read all that they may
CROWD = 2  # runnable workers for each CPU
GIL_KEEPS = 0.6  # of the window that a main thread runs, while half of its other threads' samples wait for their turn
TURNS = (0.75, 1.15)  # CPUs of workers that take turns
HELD = 0.4  # of the samples asleep in which somebody must hold the file's lock; a fifth where by turns
OWN_SLEEP = 0.6  # of the main thread's timer sleeps that is its own: a blocking wait for the GPU may sleep by a timer too
STEPS_S = 0.5  # s that a GPU has had nothing to do, from which its trainer is not between two steps
GIL_CPUS, GIL_READY = 1.15, 1.8  # CPUs of all threads of one GIL together, and with those ready for one

# Work of loaders
BUSY = 0.65  # of the time that it is asked for, from which the busiest worker is flat out; up to SOME of it it rests (guess)
KEPT_NS = 5_000_000_000  # ns since their birth that all workers want a CPU for most of the time: no start is that (guess)

# Workers that hang, or are made anew
NEARLY_ALL = 0.9  # of the window that somebody waits, is ahead, polls or spins: it does nothing else
HELD_S = 0.4  # s that GPUs rest while a worker is stopped or dead, from which its batch is what they wait for (guess: four ticks)
NAPPED_S = 4.0  # s without a batch of workers that all nap: no transform sleeps so long (guess)
LATER_TICKS = 25  # USER_HZ, 100 a second: a pool's processes are born together, one that is so much younger replaces another
APART = 5  # times as long after the elders as these took to be born, at least: forking many processes takes a while
RECENT_NS = 3_000_000_000  # ns since the last birth, in which the trainer makes workers, whatever it seems to do
FORMER_NS = 5_000_000_000  # ns since the last birth, a window (2.5 s) longer: the loss is still that of their start

# pause
PAUSE_S = 0.7  # s that GPUs rest at one go after steady work (guess: longer than a step that waits)
MOST_PAUSED = 0.6  # of the time without work for the GPU, that pauses must hold: others lose their work between two steps (guess)
ALL_AHEAD = 0.8  # of the window in which workers have nothing to do, in the mean, from which their trainer could go on
SAVED_BYTES_PER_S = 50e6  # B/s that a trainer writes which saves its weights now and then; logs and samples are less
SAVING, REST_S = 0.05, 0.35  # of the window that it waits for the disk to take them; or s that its GPU rests while memory takes them

# small-kernels
FEW = 0.35  # of the GPU that kernels use at most while they run, to be too small (KempnerPulse: under a quarter of the SMs)
MOSTLY_IDLE = 0.8  # of the window without a kernel: then it is not launches that it lacks
LAUNCH_COST_S, LIGHT_COST_S = 25e-6, 200e-6  # s that a launch takes (H200, with PyTorch's part), and with what is done for light kernels

# h2d-transfer
PAGEABLE_BYTES_PER_S = 6e9  # B/s of copies from memory that is not pinned, which a CPU copies first (guess: a thread's memcpy)

# sync-storm
TURN_S = 5e-4  # s of the main thread's own time for each wait, that it costs at most (measured: storms have 0.02 to 0.3 ms; steps 1 ms up)
LONG_TURN_S, PER_STEP = 1e-3, 8.0  # the same for each that samples met, who miss the shortest, and of a step with so many
SHORT_TURN_S = 2e-4  # the same for each call that waits, however shortly (guess)
SYNCS_PER_S = 400.0  # waits a second that are many: from these on the wake-up after each costs as well, where CPUs are busy
SPINS = 0.1  # of the window met spinning in waits (samples of the main thread)
SLEEPS_PER_BATCH = 12.0  # of these for each of the workers', who sleep about once for a batch
SLEPT_BESIDE = 0.5  # of the GPU's work, asleep
HARDLY_WORKS = 0.9  # of the window without work for the GPU, from which nobody waits for it
WRITTEN_BYTES = 1024.0  # bytes to storage for each sleep: it syncs a file

# Facts of the window: processes and CPUs
ASKS_PER_S = 3.0  # wakes a second that no heartbeat makes, also of threads that poll for what the main thread asked (guess)
GIL_HELD_S = 0.002  # s, the shortest mean sleep until the GIL is handed on: who waits for something else itself does so sooner (guess)
GIL_S = 0.007  # s, the longest mean sleep of who waits for Python's GIL: its 5 ms (`sys.getswitchinterval`), and the time to wake up
LEAST_MET = 3  # samples in which threads are met waiting for one GIL, at least
IDLE_CPU = 0.35  # of the window that a CPU idles, from which it could have taken more work
THEIRS = 0.6  # of what a pinned job lacks, taken by others inside its CPUs, from which its mask is not to blame
TAKEN = 0.15  # of the job's CPUs, from which others who take them are worth naming
AT_WORK = 0.25  # CPUs from which threads or programs beside the main thread are at work
UNUSED = 0.95  # of the window that a worker has had nothing to do, from which it gets no work
LOOKS_PER_S = 1.5  # wakes a second of one that merely looks whether its trainer is still there: torch's do every 5 s
GROWN_BYTES, MOVED_BYTES_PER_S = 64 << 20, 2e6  # bytes of memory, and B/s of storage, of other processes, from which they are named
MUTE_NS = 2_000_000_000  # ns that a program has stood at its errors: who reads them now and then does so more often
LEAD_NS = 5_000_000_000  # ns for which prefetched batches and idle CPUs hide who has run since
SHORT_LIVED_NS = 5_000_000_000  # ns of life, from which a program is told by itself and not by who starts it
WATCHED_S = 1.0  # s: who was seen for less is not judged
FRESH_NS = 1_500_000_000  # ns since its birth, up to which a process that is first seen is known since then (roles are found once a second)
GAP_NS = 5_000_000_000  # ns between two boards, from which the window begins anew
FIRST_SET_S = 1.5  # s since the first worker of a trainer was seen, or born, in which its first set is
QUEUED = 0.8  # of the window at its loader's queue of a trainer that waits for nothing else
BIRTHS_NS = 30_000_000_000  # ns for which births of workers, and paces beside them, are remembered
LEAST_WARM_S = 0.9  # s beside births, at least, to know the pace of warm workers (guess: two feeds)
CGROUP_REFAULTS_PER_S = 200.0  # dropped pages read again, a second, from which a full cgroup thrashes (4 KiB each: about 1 MB/s)
YOUNG_PERIODS = 50  # periods (100 ms by default) that a cgroup's quota has run for, up to which all its throttling is from now

# Facts of the window: GPUs, calls, steps
LIGHT_SM = 0.4  # of the SMs, up to which kernels are light (DCGM: under a half is "ineffective"; KempnerPulse: under a quarter)
IDLE_POWER = 0.15  # of the power limit, drawn by a GPU with a context and no work (H100 and H200: 70 to 115 of 700 W)
SLOW_CLOCK = 0.85  # of the highest SM clock, under which it is held down; boost moves within the rest
PEER = 0.2  # of the window that a rank's GPU idles more than its peers', or is used more, from which it is a straggler
LIKE_OTHERS = 0.45  # of the straggler's own delay that its peers have, too, from which it is none
MOST_UNLIKE = 0.95  # of the samples that may differ from the next one; more would be chance alone
STALE_NS = 3_000_000_000  # ns since a GPU was read, or a process born, from which that says nothing of now
STEADY_NS = 1_000_000_000  # ns that a GPU works, or rests, from which that is steady: less is a step, a blink or a gap between two (guess)
RATES_NS = 9_000_000_000  # ns for which the driver's PCIe rates, of 20 ms each and two seconds apart, are looked at together
LAUNCH_S = 4e-6  # s of CPU that a launch takes, about, where it is not counted but its share of the time is known
BURST_SPAN_NS = 200_000_000  # ns of a burst of launches, at most: what was there before anybody looked is not one
LEAST_SAMPLED_NS = 100_000_000  # ns sampled in the window for that to be told; else all that was
SLOWEST_NS_PER_BYTE, SLOWEST_NS = 10.0, 50_000  # ns of a copy, a byte (100 MB/s: under a lane of PCIe 1) and besides; more is a wait
LEAST_POINTS = 80  # readings of 100 ms for a rhythm
LEAST_LAG, TOLD_LAG = 3, 7  # readings of 100 ms that come around, at least, and from which that is one step and no beat of several
LEAST_SWING_PCT = 60.0  # per cent of utilization from low to high; steps faster than a reading swing less, and come around more slowly
SAME_RATE = 1.5  # times as often, up to which calls of several kinds come together, and a rhythm is that of the waits
MOST_COPIES = 4  # copies per synchronize in one step, at most; more means that the synchronize is a log line
STEADY = 0.75  # of the windows with calls, those with as many copies per synchronize as in all of them
NOTHING = 0.995  # of the window without work for the GPU, from which not even a step now and then was made
SLOWEST_STEP_PER_S, FASTEST_STEP_PER_S = 0.2, 500.0  # steps a second, at least and at most
BOTH_WAYS_BYTES_PER_S = 200e6  # B/s to the GPU and back that are gradients and weights, each in many copies
ALONE_PER_S = 5.0, 150.0  # synchronizes a second without copies: fewer are log lines or epochs, more a storm

# Starts, pauses and signs of life
WARM_UP_NS = 30_000_000_000  # ns that a start takes at most: until its GPU works, and from then on
SEEN_NS = 2_000_000_000  # ns after the first look, up to which a GPU that begins to work had merely rested between two steps
GREW = 1.05  # times the memory on its GPUs before, from which it takes more
LOOKS, LONE_LOOKS = 6, 4  # looks, of half a second or a second, with a batch taken, or with work and no worker, from which it trains so
BATCH_NS = 500_000  # ns of CPU that a worker takes for a batch, at least; a look at its queue takes a tenth of that
UTIL_NS = 1_000_000_000  # ns, of which NVML's utilization may be, up to now
FULL = 0.85  # utilization of a GPU that works without a pause
STEADY_BEFORE_NS = 450_000_000  # ns of full work before a break: a GPU whose every step waits is never used in full for so long
LOST_NS, STILL_NS = 300_000_000, 150_000_000  # ns lost in a break at least, edges included; and of these at one go without any work
SUNK_NS = 700_000_000  # ns with little work, from which a GPU has sunk
UNREAD_NS = 1_000_000_000  # ns without a reading, from which nothing is known of it; without GPM NVML's utilization counts
QUIET_NS = 350_000_000  # ns without a call; less is the host's part of a step
STEPS_BEFORE = 4  # steps before that; fewer belong to it
WORKS = 0.01  # of the window that a worker runs at least that works; one that does not stir for `PAUSE_S` rests
TURN_NS, LONGEST_TURN_NS = 1_000_000_000, 20_000_000_000  # ns for which other workers work, and from which that is no pause
AGAIN = 4  # pauses in a row from which they are told: a checkpoint with its evaluation is fewer
REMEMBERED_NS, SAME_PAUSE_NS = 600_000_000_000, 450_000_000  # ns since the first of them at most; ns between two that are one
SUSTAINED = 0.04  # CPUs while nothing else moves, from which it is work (measured: watchdogs, exporters, log writers take under 0.01)
BURST_NS = 10_000_000  # ns of CPU of a main thread from one look to the next that no heartbeat takes (torch's takes 0.2 ms)
OTHERS_BURST_NS = 100_000_000  # ns of CPU of other threads and of programs, told in ticks of 10 ms, that no heartbeat takes
IO_BYTES, IO_BYTES_PER_S = 4_096, 1_000.0  # B, B/s: reads and writes beyond that are work; watchdogs move a few bytes
WAKES = 6  # wakes of a main thread, beyond `ASKS_PER_S`, that are work
ABSENT_S = 4.0  # s without a sign of life, from which ranks stand in a collective: who ends after the others saves or sends something

# Incidents
HUNG_S = 5.0  # s without a sign of life of a job, or of a pool of which some were born late: torch's queues look every 5 s for their loader
FAR_S = 30.0  # s of that, where somebody who is not seen may be at work: ranks on other hosts, a GPU that tells nothing (guess)
AT_END = 0.98  # of its GPU seconds, lost from which on nothing ran: it ends, or makes no steps yet
BEGIN_LOST_S = 0.6  # GPU seconds that a cause must have cost, and a tenth of its time, to begin an incident
MEDIUM_S, HIGH_S = 2.0, 10.0  # GPU seconds lost from which an incident is of medium and high severity, if a share of its time is, too
PATIENCE_NS = 8_000_000_000  # ns after its trainer that a worker still ends by itself in
REACH = 10.0  # times as far ahead as memory has been seen to grow, its end may lie (a choice)
GROWS_AFTER_NS = 10_000_000_000  # ns of life; a younger process imports, opens and fills its buffers
LOADED_S = 60.0  # s after that, or three stretches of the trend if they are shorter, until growth may be told (guess)
HIGH_LEFT_S, MEDIUM_LEFT_S = 600.0, 3600.0  # s until memory is full, under which severity is high, medium
SWAP_BYTES = 64 << 20  # B of free swap, from which the host swaps before it is out of memory
