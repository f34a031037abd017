"""Advice by the kind of program, in one table.

A cause names the change (more loaders, copies overlapped with computing …), and the table how a program of the job's kind makes it:
`LOADING` for its input, a column for each `Kind`; `COMPUTING` for its GPU, a column for each `Framework`. `_ANY` and `_PLAIN` are true of
any program; another column has only its differences, so that a new kind is one column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from gputop.diagnosis.facts.capacity import capacity
from gputop.diagnosis.facts.feeders import threads_wait
from gputop.diagnosis.facts.kinds import Kind, kind_of
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Fix
from gputop.model.roles import is_python

FIRST_LOADERS = 4  # loaders to begin with, at most


class Framework(Enum):
    """Software that gives a GPU its work."""

    TORCH = "torch"
    JAX = "JAX"
    TENSORFLOW = "TensorFlow"
    CUDA = "CUDA"
    ENGINE = "inference engine"
    UNKNOWN = "unknown"


class Hint(Struct, frozen=True):
    """A fix; its holes ``{:d}`` all take the same number: of workers, processes, threads."""

    text: str
    command: str = ""


Hints = tuple[Hint, ...]


class Loading(Struct, frozen=True, kw_only=True):
    """Advice on the input of one kind of program: what its loaders are, or whatever else prepares the input."""

    has_workers: bool = False  # whether it may have more or fewer loaders that are processes of its own, each for whole batches
    apart: str = ""  # words of a what-if in which another thread or process prepares what the main thread does now; empty: none can
    more: Hints  # so many loaders
    fewer: Hints  # at most so many
    asleep: Hints  # so many, for they sleep and would cost no CPU
    shards: Hints  # some of so many get no data
    in_flight: Hints  # more requests to a disk or to the network at once, by so many
    ahead: Hints  # the main thread prepares the input itself; so many could do it
    moved: Hints  # there are loaders, and the main thread prepares the input nevertheless
    interpreters: Hints  # threads share one interpreter's lock; so many processes would not
    single: Hints  # loaders have several threads that share one interpreter's lock
    cheaper: Hints  # loaders are too slow
    in_order: Hints  # one input that takes long keeps the others
    kept: Hints  # so many loaders are started again and again
    handles: Hints  # loaders wait for one lock
    less_held: Hints  # of memory, by so many loaders
    stored: Hints  # storage is too slow
    pinned: Hints  # copies are from memory that is not pinned
    unpinned: Hints  # a thread that copies to pinned memory cannot keep up
    endless: Hints  # it waits for ever for one that has died or hangs
    uneven: Hints  # one rank has more to do than the others
    grown: Hints  # memory of so many loaders grows
    unread: Hints  # what it writes is read too slowly


class Computing(Struct, frozen=True, kw_only=True):
    """Advice on the work for the GPU, by framework."""

    beside: Hints  # it computes and copies one after the other
    smaller: Hints  # it copies much
    pieces: Hints  # it copies many small pieces
    returned: Hints  # it copies much back
    offloaded: Hints  # gradients and weights go back and forth
    updates: Hints  # the optimizer works on the host
    launches: Hints  # of many small kernels
    waits: Hints  # for the GPU after every few operations
    bigger: Hints  # the GPU is more than it uses
    turns: Hints  # its GPUs work one after the other
    checkpoints: Hints  # the GPU rests while it writes them
    again: Hints  # ranks wait for one that is gone
    ranks: Hints  # the same, so that it does not come again
    endless_ranks: Hints  # all wait for each other for ever
    exchanged: Hints  # they send each other more than the network carries
    hoarded: Hints  # its memory on the host grows
    hoarded_gpu: Hints  # its memory on a GPU grows


_ANY = Loading(
    apart="the input prepared while it computes",
    more=(Hint("Start more loaders, {:d} in all, each with a part of the data"),),
    fewer=(Hint("Let at most {:d} loaders run at once"),),
    asleep=(Hint("Start more loaders, {:d} in all: they sleep in parallel"),),
    shards=(Hint("Give each of the {:d} that prepare its input as much of the data"),),
    in_flight=(Hint("Have more requests under way at once: ask for the next ones before these have come"),),
    ahead=(Hint("Begin to prepare the next input in another thread or process before the GPU has finished this one"),),
    moved=(Hint("Move the main thread's preparing to the loaders; measure less often, or on the GPU"),),
    interpreters=(Hint("Move the other threads' work into processes of their own"),),
    single=(Hint("Use more processes with one thread each"),),
    cheaper=(Hint("Make it cheaper: do once what is the same each time and keep it, or do it on the GPU"),),
    in_order=(Hint("Take inputs as they are done, if their order does not matter"), Hint("Or have more inputs ready, for the longest")),
    kept=(Hint("Keep the loaders, rather than start them again and again"),),
    handles=(Hint("Give each loader its own handle or part of what they lock, opened after its start, read-only"),),
    less_held=(Hint("Or hold less: fewer loaders, or fewer inputs ahead"),),
    stored=(Hint("Copy what it reads to a faster disk or to memory, or pack many small files into few large ones"),),
    pinned=(Hint("Copy from page-locked memory, while it computes"),),
    unpinned=(Hint("Send less, or one large piece rather than many"),),
    endless=(Hint("Have the next one end with an error, rather than wait for ever: give its waits a time limit"),),
    uneven=(Hint("Even out the ranks' parts of the work: this one has more, where its GPU is as fast as theirs"),),
    grown=(Hint("Until then, restart the loaders now and then"),),
    unread=(Hint("Write less often, or to a file"), Hint("Or hand it to a thread that writes while the next step runs")),
)

LOADING = {
    Kind.UNKNOWN: _ANY,
    Kind.TORCH: replace(
        _ANY,
        has_workers=True,
        apart="",
        more=(Hint("Start more workers", "DataLoader(..., num_workers={:d})"),),
        fewer=(Hint("No more workers than may run at once: {:d}", "DataLoader(..., num_workers={:d})"),),
        asleep=(Hint("More workers: they sleep side by side", "DataLoader(..., num_workers={:d})"),),
        shards=(Hint("Give each worker as much of the data: a stream needs at least as many shards as the {:d} workers, of like size"),),
        in_flight=(Hint("Have more reads in flight", "DataLoader(..., num_workers={:d}, prefetch_factor=4)"),),
        ahead=(Hint("Load and transform in workers", "DataLoader(..., num_workers={:d}, persistent_workers=True)"),),
        moved=(
            Hint(
                "Move what makes batches into the Dataset or a collate_fn, which run in the workers; measure less often, or on the GPU",
                "DataLoader(..., collate_fn=...)",
            ),
        ),
        interpreters=(
            Hint("Move the other threads' work into processes of their own", "DataLoader(..., num_workers={:d}, persistent_workers=True)"),
        ),
        single=(Hint("Use more workers with one thread each"),),
        cheaper=(
            Hint("Make it cheaper: decode to the size needed, do it once and store it, or move it to the GPU (DALI, torchvision v2)"),
        ),
        in_order=(
            Hint("Take batches as they are done (from torch 2.6 on), if their order does not matter", "DataLoader(..., in_order=False)"),
            Hint("Or have more batches ready, for as long as the longest takes", "DataLoader(..., prefetch_factor=8)"),
        ),
        kept=(
            Hint(
                "Keep the workers over epochs, in one DataLoader that is made once (over all files or shards)",
                "DataLoader(..., num_workers={:d}, persistent_workers=True)",
            ),
        ),
        handles=(
            Hint("Give each worker its own handle or shard (HDF5, LMDB, SQLite, a file cache), opened in worker_init_fn, to read only"),
        ),
        less_held=(Hint("Or hold less: fewer workers, or fewer batches ahead", "DataLoader(..., num_workers={:d}, prefetch_factor=1)"),),
        stored=(
            Hint("Copy the data set to a faster disk or to memory, or pack many small files into few large ones (WebDataset, tar, LMDB)"),
        ),
        pinned=(
            Hint("Copy from pinned memory, while it computes", "DataLoader(..., pin_memory=True); batch.to(device, non_blocking=True)"),
        ),
        unpinned=(
            Hint("Send less: uint8 until it is on the GPU, smaller batches, one tensor rather than many"),
            Hint("Or copy without pinning, which takes that thread out of the way", "DataLoader(..., pin_memory=False)"),
        ),
        endless=(Hint("Have the next one end the training with an error, rather than wait for ever", "DataLoader(..., timeout=60)"),),
        uneven=(Hint("Even out the batches (by tokens rather than by samples): this rank has more, if its GPU is as fast as theirs"),),
        grown=(Hint("Until then, let each epoch begin with new workers", "DataLoader(..., num_workers={:d}, persistent_workers=False)"),),
    ),
    Kind.TF_DATA: replace(
        _ANY,
        more=(Hint("Let tf.data do more at once", "dataset.map(..., num_parallel_calls={:d}).prefetch({:d})"),),
        fewer=(Hint("Let tf.data run at most {:d} at once", "dataset.map(..., num_parallel_calls={:d})"),),
        asleep=(Hint("Let tf.data have more under way: it sleeps", "dataset.map(..., num_parallel_calls={:d})"),),
        shards=(Hint("Interleave {:d} files, of like size, or as many as there are", "dataset.interleave(..., cycle_length={:d})"),),
        in_flight=(Hint("Read from several files at once", "dataset.interleave(..., cycle_length={:d}, num_parallel_calls={:d})"),),
        ahead=(Hint("Let tf.data prepare the next batches ahead", "dataset.map(..., num_parallel_calls={:d}).prefetch({:d})"),),
        moved=(Hint("Move what makes batches into the dataset (map, batch); measure less often, or on the GPU"),),
        interpreters=(Hint("Take Python out of it (py_function, from_generator): the rest of tf.data shares no lock"),),
        single=(Hint("Take Python out of it (py_function, from_generator): the rest of tf.data shares no lock"),),
        cheaper=(Hint("Make it cheaper: keep what is the same in each epoch, batch before the map", "dataset.map(...).cache()"),),
        in_order=(Hint("Take elements as they are done, if their order does not matter", "dataset.map(..., deterministic=False)"),),
        kept=(Hint("Make the dataset once, and repeat it", "dataset.repeat()"),),
        less_held=(Hint("Or hold less: a smaller shuffle buffer, fewer batches ahead", "dataset.shuffle(1000).prefetch(1)"),),
        stored=(Hint("Copy the data set to a faster disk or to memory, or pack many small files into few large ones (TFRecord)"),),
        pinned=(Hint("Have the next batch on the GPU already", 'dataset.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))'),),
    ),
    Kind.JAX: replace(
        _ANY,
        ahead=(
            Hint(
                "Prepare the next batch in another thread or process, and send it before this one's result is awaited",
                "following = jax.device_put(next(batches)); state = step(state, batch)",
            ),
        ),
        pinned=(Hint("Send the next batch while this one is computed", "following = jax.device_put(next(batches))"),),
    ),
    Kind.GRAIN: replace(
        _ANY,
        has_workers=True,
        apart="",
        more=(Hint("Start more workers", "grain.MultiprocessingOptions({:d})"),),
        fewer=(Hint("No more workers than may run at once: {:d}", "grain.MultiprocessingOptions({:d})"),),
        asleep=(Hint("More workers: they sleep side by side", "grain.MultiprocessingOptions({:d})"),),
        shards=(Hint("Give each of the {:d} workers as much of the data: at least as many shards as workers, of like size"),),
        in_flight=(Hint("Have more reads in flight", "grain.ReadOptions(num_threads={:d}, prefetch_buffer_size=500)"),),
        ahead=(Hint("Load and transform in workers", "dataset.mp_prefetch(grain.MultiprocessingOptions({:d}))"),),
        moved=(Hint("Move what makes batches into the dataset's map and batch, which run in the workers; measure less often"),),
        interpreters=(Hint("Move the other threads' work into processes of their own", "grain.MultiprocessingOptions({:d})"),),
        kept=(Hint("Make the iterator once, over all epochs, so that its workers stay", "dataset.repeat()"),),
        less_held=(Hint("Or hold less: fewer workers, or fewer batches ahead", "grain.MultiprocessingOptions({:d})"),),
        pinned=(Hint("Send the next batch while this one is computed", "following = jax.device_put(next(batches))"),),
    ),
    Kind.DALI: replace(
        _ANY,
        more=(Hint("Give the pipeline more threads", "Pipeline(..., num_threads={:d})"),),
        fewer=(Hint("No more threads than may run at once: {:d}", "Pipeline(..., num_threads={:d})"),),
        asleep=(Hint("More threads: they sleep side by side", "Pipeline(..., num_threads={:d})"),),
        in_flight=(Hint("Have more reads in flight", "Pipeline(..., num_threads={:d}, prefetch_queue_depth=4)"),),
        ahead=(Hint("Let the pipeline prepare it, some batches ahead", "Pipeline(..., num_threads={:d}, prefetch_queue_depth=4)"),),
        interpreters=(Hint("Let its Python sources run in processes", "fn.external_source(..., parallel=True)"),),
        single=(Hint("Let its Python sources run in processes", "fn.external_source(..., parallel=True)"),),
        cheaper=(Hint("Decode on the GPU, to the size needed", 'fn.decoders.image_random_crop(..., device="mixed")'),),
        less_held=(Hint("Or hold less: fewer batches ahead", "Pipeline(..., prefetch_queue_depth=1)"),),
    ),
    Kind.STREAMING: replace(
        _ANY,
        in_flight=(
            Hint("Store the data set on this host, where it has room", "load_dataset(..., streaming=False)"),
            Hint(
                "Or read further ahead",
                "ParquetFragmentScanOptions(cache_options=pyarrow.CacheOptions(prefetch_limit=4, range_size_limit=128 << 20))",
            ),
        ),
        ahead=(Hint("Begin to fetch and transform the next batch in another thread or process before the GPU has finished this one"),),
        cheaper=(Hint("Transform whole batches, or do it once and keep it", "dataset.map(..., batched=True).save_to_disk(...)"),),
        stored=(Hint("Keep its cache on a faster disk", "export HF_HOME=..."),),
        less_held=(Hint("Or hold less: a smaller shuffle buffer", "dataset.shuffle(buffer_size=1000)"),),
    ),
    Kind.POOL: replace(
        _ANY,
        has_workers=True,
        more=(Hint("Start more of its processes", "multiprocessing.Pool({:d})"),),
        fewer=(Hint("No more of its processes than may run at once: {:d}", "multiprocessing.Pool({:d})"),),
        asleep=(Hint("More of its processes: they sleep side by side", "multiprocessing.Pool({:d})"),),
        in_flight=(Hint("Have more requests in flight", "multiprocessing.Pool({:d})"),),
        ahead=(Hint("Prepare the next input in a process before the GPU has finished this one", "multiprocessing.Pool({:d})"),),
        moved=(Hint("Move what makes batches into its other processes; measure less often, or on the GPU"),),
        in_order=(
            Hint("Take results as they are done, if their order does not matter", "pool.imap_unordered(...)"),
            Hint("Or have more inputs ready, for the longest"),
        ),
        kept=(Hint("Make its processes once, and keep them over epochs"),),
        handles=(
            Hint("Give each process its own handle or part (HDF5, LMDB, SQLite, a buffer), opened once it has started, to read only"),
        ),
        less_held=(Hint("Or hold less: fewer processes, or fewer batches ahead", "multiprocessing.Pool({:d})"),),
        grown=(Hint("Until then, replace each process after some tasks", "multiprocessing.Pool({:d}, maxtasksperchild=1000)"),),
    ),
    Kind.RAY: replace(
        _ANY,
        more=(Hint("Give the stage that is too slow more workers", "dataset.map_batches(..., concurrency={:d})"),),
        fewer=(Hint("Let at most {:d} tasks or actors run at once", "dataset.map_batches(..., concurrency={:d})"),),
        asleep=(Hint("More tasks or actors: they sleep side by side", "dataset.map_batches(..., num_cpus=0.2, concurrency={:d})"),),
        shards=(Hint("Cut the data set into more blocks than the {:d} workers", "dataset.repartition(...)"),),
        in_flight=(Hint("Have more blocks under way", "dataset.iter_batches(..., prefetch_batches={:d})"),),
        ahead=(Hint("Prepare batches in Ray's workers, some ahead", "dataset.map_batches(...).iter_batches(prefetch_batches={:d})"),),
        moved=(Hint("Move what makes batches into map_batches, which runs in Ray's workers; measure less often, or on the GPU"),),
        cheaper=(Hint("Make it cheaper: larger batches for each call, done once and kept", "dataset.map_batches(...).materialize()"),),
        kept=(Hint("Keep the actors: a class for map_batches is made once in each, a function's imports and files are not"),),
        less_held=(Hint("Or hold less: fewer batches ahead, smaller blocks", "dataset.iter_batches(..., prefetch_batches=1)"),),
    ),
    Kind.FFMPEG: replace(
        _ANY,
        more=(
            Hint("Let it decode in more threads", "ffmpeg -threads {:d} -i ..."),
            Hint("Or let {:d} decode in parallel, each a part of the input, and read each in a thread"),
        ),
        fewer=(Hint("No more threads of ffmpeg than may run at once: {:d}", "ffmpeg -threads {:d} -i ..."),),
        asleep=(Hint("Let {:d} read in parallel, each a part of the input: they sleep"),),
        in_flight=(Hint("Let {:d} read in parallel, each a part of the input; or fetch the files first"),),
        ahead=(Hint("Read ffmpeg's output in a thread, some inputs ahead of the GPU"),),
        moved=(Hint("Let ffmpeg scale and convert, and read its output in a thread", "ffmpeg -i ... -vf scale=...,format=rgb24"),),
        cheaper=(
            Hint("Or decode on the GPU", "ffmpeg -hwaccel cuda -i ..."),
            Hint("Or decode less: smaller, or fewer frames", "ffmpeg -skip_frame nokey -i ... -vf scale=..."),
        ),
        kept=(Hint("Let one ffmpeg decode many inputs, rather than start one for each"),),
    ),
    Kind.ENGINE: replace(
        _ANY,
        apart="",
        more=(Hint("Give what comes before the GPU (tokenizing, decoding, answering) more processes: {:d} (--api-server-count of vLLM)"),),
        fewer=(Hint("Let at most {:d} of its processes and threads run at once", "export OMP_NUM_THREADS={:d}"),),
        asleep=(Hint("Let more requests be under way at once"),),
        shards=(Hint("Spread requests evenly over its {:d} processes"),),
        in_flight=(
            Hint("Keep the weights on a local disk, or in memory, and read several files at once"),
            Hint("What each request fetches, fetch for several at once, and keep it"),
        ),
        ahead=(Hint("Let the next requests be scheduled and tokenized while the GPU works, in a process of their own"),),
        moved=(Hint("Do in the server's other processes what is done between two of the engine's steps: tokenizing, logs, sampling"),),
        cheaper=(Hint("Make a request cheaper for the host: fewer logs, statistics and log-probabilities, answers in larger pieces"),),
        in_order=(Hint("Answer requests as they are done"), Hint("Or keep long ones apart: chunked prefill, a limit of their length")),
        kept=(Hint("Keep its processes between requests, rather than start them again"),),
        less_held=(Hint("Or hold less: fewer processes, a smaller cache on the host"),),
        stored=(Hint("Keep the weights on a faster disk or in memory, in few large files (safetensors)"),),
        endless=(Hint("Give requests a time limit, and let a health check restart the engine"),),
        uneven=(Hint("Spread requests, or experts, more evenly: this rank has more, where its GPU is as fast as the others"),),
        grown=(Hint("Until then, let its processes be restarted one after the other, now and then"),),
        unread=(
            Hint("Let a proxy that takes whole answers stand before it: then a client that reads slowly holds nobody up"),
            Hint("End the streams of clients that do not read, after a time limit; send answers in larger pieces (--stream-interval)"),
        ),
    ),
    Kind.NATIVE: replace(
        _ANY,
        more=(Hint("Prepare the input in {:d} threads, by its own switch"),),
        fewer=(Hint("No more threads than may run at once: {:d}, by its own switch"),),
        ahead=(Hint("Prepare the next input in another thread before the GPU has finished this one"),),
        moved=(Hint("Move what the main thread prepares to the threads that load for it"),),
        interpreters=(Hint("Hold the lock that its threads share for shorter, or let each have a part of its own"),),
        single=(Hint("Hold the lock that its threads share for shorter, or let each have a part of its own"),),
        pinned=(Hint("Copy from page-locked memory, while it computes", "cudaHostAlloc(...); cudaMemcpyAsync(..., stream)"),),
        uneven=(Hint("Divide the domain again, by the time that each part takes: this rank has more, if its GPU is as fast as theirs"),),
    ),
}  # fmt: skip

_BY_OPENMP = replace(
    LOADING[Kind.NATIVE],
    more=(Hint("Prepare the input in more threads: by its own switch, or OpenMP's", "export OMP_NUM_THREADS={:d}"),),
    fewer=(Hint("No more threads than may run at once: by its own switch, or OpenMP's", "export OMP_NUM_THREADS={:d}"),),
)  # of a native program that maps a library of OpenMP: others do not read its variable

_CACHE_THAT_FILLS = Hint("If it is a cache that fills, compare with the size that it should reach: then this ends by itself")
_PLAIN = Computing(
    beside=(Hint("Copy the next input on a stream of its own while this one is computed"),),
    smaller=(Hint("Send less: bytes as they were stored, converted on the GPU"),),
    pieces=(Hint("Put the small pieces together first, and copy once a step"),),
    returned=(Hint("Reduce it on the GPU, and copy only what is used here"), Hint("Copy into page-locked memory, during the next step")),
    offloaded=(
        Hint("As much comes back as goes, like gradients and weights: keep on the GPU what changes there"),
        Hint("Where it has no room, copy from and to page-locked memory, while it computes"),
    ),
    updates=(
        Hint("Keep on the GPU what each step updates, where it has room: in fewer bits, or spread over several GPUs"),
        Hint("Or update piece by piece in several threads, and send each piece back while the next one is updated"),
    ),
    launches=(Hint("Launch many kernels at once, by CUDA graphs"), Hint("Fuse them, or give each kernel more to do")),
    waits=(Hint("Wait for the GPU once a step, and leave results there until they are needed"),),
    bigger=(
        Hint("Give it more at once"),
        Hint("Or run the next one together with others: on a part of a GPU (MIG, set up while nothing runs there), or under MPS"),
    ),
    turns=(
        Hint("Give its GPUs different inputs at once, rather than one after the other"),
        Hint("Or give it only as many GPUs as it needs", "CUDA_VISIBLE_DEVICES=..."),
    ),
    checkpoints=(Hint("Write checkpoints from a copy, in another thread or process, or less often"),),
    again=(Hint("Restart the job, from its last checkpoint if it has one: its ranks will wait until the collective's timeout"),),
    ranks=(Hint("Let the launcher end all ranks when one ends"),),
    endless_ranks=(Hint("Have the next one end with an error, rather than wait for ever: give its collectives a time limit"),),
    exchanged=(
        Hint("Exchange less often: add up several inputs' results on each GPU before the ranks exchange them"),
        Hint("Or send fewer bytes, in 16 bits rather than 32, and begin while the rest is still being computed"),
    ),
    hoarded=(Hint("Let go of what each step keeps"), _CACHE_THAT_FILLS),
    hoarded_gpu=(Hint("Free what each step allocates before the next one, or take it from a pool of fixed size"), _CACHE_THAT_FILLS),
)

COMPUTING = {
    Framework.UNKNOWN: _PLAIN,
    Framework.TORCH: replace(
        _PLAIN,
        beside=(
            Hint(
                "Copy the next batch on a stream of its own while this one is computed",
                "with torch.cuda.stream(side): batch = batch.to(device, non_blocking=True)",
            ),
        ),
        smaller=(Hint("Send less: uint8 images instead of float32, normalize on the GPU"),),
        pieces=(
            Hint("Put the small pieces together first, and copy once a step", 'torch.cat(pieces).to("cuda", non_blocking=True)'),
        ),
        returned=(
            Hint("Reduce it on the GPU, and copy only what is used here", "preds = logits.argmax(-1).cpu(); total += loss.detach()"),
            Hint("Copy into page-locked memory, during the next step", "host.copy_(x, non_blocking=True)"),
        ),
        offloaded=(
            Hint(
                "As much comes back as goes, like gradients and weights: keep the optimizer on the GPU",
                "torch.optim.AdamW(..., fused=True)",
            ),
            Hint("Where it has no room, copy from page-locked memory, during the backward pass", "DeepSpeed: offload_optimizer"),
        ),
        updates=(
            Hint("Keep the optimizer on the GPU: its state in 8 bits takes a quarter of the room", "bitsandbytes.optim.AdamW8bit(...)"),
            Hint("Or spread its state over several GPUs (FSDP, ZeRO)", "torch.distributed.fsdp.fully_shard(model)"),
            Hint("Or let it update in vectors and threads, during the copies (DeepSpeed: offload_optimizer)", "DeepSpeedCPUAdam(...)"),
            Hint("Or update less often: sum the gradients of several batches on the GPU"),
        ),
        launches=(
            Hint("Launch many kernels at once, by CUDA graphs", 'model = torch.compile(model, mode="reduce-overhead")'),
            Hint("Fuse the optimizer's kernels", "torch.optim.AdamW(..., fused=True)"),
            Hint("Or give each kernel more to do: a larger batch"),
        ),
        waits=(
            Hint("Keep on the GPU what .item(), .cpu(), print, nonzero() or a boolean mask fetches; read the loss every hundred steps"),
            Hint("Let torch name each call that waits", 'torch.cuda.set_sync_debug_mode("warn")'),
        ),
        bigger=(Hint("Give it more at once: a larger batch, or a larger model"), _PLAIN.bigger[1]),
        exchanged=(
            Hint("Exchange gradients less often: sum those of several batches, without DDP's all-reduce between", "with model.no_sync():"),
            Hint(
                "Or send them in 16 bits",
                "model.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)",
            ),
        ),
        again=(Hint("Restart the training from its last checkpoint: they will wait until the collective's timeout"),),
        hoarded=(
            Hint("Keep numbers, not tensors: a loss that is kept holds all that it was computed from", "losses.append(loss.item())"),
            _CACHE_THAT_FILLS,
        ),
        hoarded_gpu=(
            Hint("Keep no tensor that holds its graph from step to step", "total += loss.detach()  # or loss.item()"),
            Hint("Let go of a step's results before the next one", "del loss, output; optimizer.zero_grad(set_to_none=True)"),
            Hint(
                "If torch.cuda.memory_allocated() stays level, the allocator fragments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            ),
        ),
        turns=(
            Hint("Split each batch, and let the parts of the model work on different ones at once", "torch.distributed.pipelining"),
            Hint("Or one process for each GPU with all of the model (DDP, FSDP)", "torchrun --nproc-per-node=..."),
            Hint("Or give it only as many GPUs as the model needs", "CUDA_VISIBLE_DEVICES=..."),
        ),
        checkpoints=(Hint("Write checkpoints less often, or in the background", "torch.distributed.checkpoint.async_save(...)"),),
        ranks=(Hint("Let a launcher end all ranks when one ends", "torchrun --nproc-per-node=..."),),
        endless_ranks=(
            Hint("Have the next one end with an error", "torch.distributed.init_process_group(..., timeout=timedelta(minutes=5))"),
        ),
    ),
    Framework.JAX: replace(
        _PLAIN,
        beside=(Hint("Send the next batch before this one's result is awaited", "following = jax.device_put(next(batches))"),),
        smaller=(Hint("Send less: uint8 rather than float32, converted under jit"),),
        pieces=(Hint("Send one tree of large arrays rather than many small ones", "jax.device_put(batch)"),),
        returned=(Hint("Reduce it under jit, and fetch only what is used here", "jax.device_get(metrics)"),),
        updates=(
            Hint("Keep the optimizer's state on the GPU, in fewer bits or factored", "optax.adafactor(...)"),
            Hint("Or shard it over several GPUs", "jax.device_put(state, NamedSharding(mesh, spec))"),
            Hint("Or update less often: sum the gradients of several batches on the GPU", "optax.MultiSteps(optimizer, 4)"),
        ),
        launches=(
            Hint("Put the whole step under one jit, or several steps into one call", "jax.lax.scan(step, state, batches)"),
            Hint("Or give each kernel more to do: a larger batch"),
        ),
        waits=(Hint("Read the loss every hundred steps: float(), np.asarray, print and block_until_ready wait for the GPU"),),
        bigger=(Hint("Give it more at once: a larger batch, or a larger model"), _PLAIN.bigger[1]),
        checkpoints=(Hint("Write checkpoints less often, or in the background", "orbax.checkpoint.AsyncCheckpointer(...)"),),
    ),
    Framework.TENSORFLOW: replace(
        _PLAIN,
        smaller=(Hint("Send less: uint8 rather than float32, cast on the GPU"),),
        launches=(
            Hint("Fuse kernels by XLA", "tf.function(jit_compile=True)"),
            Hint("Launch several steps in one call", "model.compile(..., steps_per_execution=16)"),
        ),
        waits=(Hint("Read the loss every hundred steps: .numpy(), float() and print wait for the GPU"),),
        bigger=(Hint("Give it more at once: a larger batch, or a larger model"), _PLAIN.bigger[1]),
        checkpoints=(
            Hint(
                "Write checkpoints less often, or in the background",
                "tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)",
            ),
        ),
    ),
    Framework.CUDA: replace(
        _PLAIN,
        beside=(Hint("Copy the next input on a stream of its own while this one is computed", "cudaMemcpyAsync(..., copy_stream)"),),
        returned=(
            Hint("Reduce it on the GPU, and copy only what is used here"),
            Hint("Copy into page-locked memory, during the next step", "cudaMemcpyAsync(..., cudaMemcpyDeviceToHost, stream)"),
        ),
        launches=(
            Hint("Launch many kernels at once, by CUDA graphs", "cudaStreamBeginCapture(...); cudaGraphLaunch(...)"),
            Hint("Fuse them, or give each kernel more to do"),
        ),
        waits=(
            Hint("Wait once a step, for what is needed: by events and streams rather than after each kernel", "cudaStreamWaitEvent(...)"),
        ),
        bigger=(Hint("Give it more at once: a larger problem for each GPU"), _PLAIN.bigger[1]),
    ),
    Framework.ENGINE: replace(
        _PLAIN,
        launches=(
            Hint("Let the engine capture CUDA graphs: take out what forbids that (--enforce-eager, --disable-cuda-graph)"),
            Hint("Or let it compute more requests at once (--max-num-seqs, --max-running-requests)"),
        ),
        waits=(Hint("Let it schedule the next step before this one is done (vLLM: no --no-async-scheduling), and sample on the GPU"),),
        again=(Hint("Restart the engine with all of its ranks: the others will wait until the collective's timeout"),),
        hoarded=(
            Hint("Give its caches on the host a bound: of prefixes, of images, of tokens that were made"), _CACHE_THAT_FILLS,
            Hint("Until then, restart one replica after the other, now and then"),
        ),
        hoarded_gpu=(
            Hint("Leave it more room beside its memory for keys and values (--gpu-memory-utilization, --mem-fraction-static)"),
            Hint("Or bound what requests may ask for: their length, images in them, how many run at once"),
        ),
        bigger=(Hint("Give it more requests at once, if there are any, or a larger model"), _PLAIN.bigger[1]),
        turns=(
            Hint("Split each layer rather than the layers over its GPUs (--tensor-parallel-size), or run one engine on each"),
            Hint("Or give it only as many GPUs as the model needs", "CUDA_VISIBLE_DEVICES=..."),
        ),
    ),
}  # fmt: skip


def framework_of(job: WalkedJob, kind: Kind) -> Framework:
    """The job's framework."""
    info, libs = job.trainer.info, {*job.trainer.info.libs}
    if kind is Kind.ENGINE:
        return Framework.ENGINE
    if kind is Kind.TORCH or ("torch" in libs and kind not in (Kind.JAX, Kind.GRAIN)):
        return Framework.TORCH
    if "jax" in libs or kind in (Kind.JAX, Kind.GRAIN):
        return Framework.JAX
    if "tensorflow" in libs:
        return Framework.TENSORFLOW
    return Framework.UNKNOWN if is_python(info) else Framework.CUDA


def is_scripted(job: WalkedJob, facts: WalkedFacts) -> bool:
    """True if the job is a script in Python, which its users may change: no engine, no program in another language."""
    return is_python(job.trainer.info) and kind_of(job, facts) is not Kind.ENGINE


def loading(job: WalkedJob, facts: WalkedFacts) -> Loading:
    """Advice on the job's input."""
    kind = kind_of(job, facts)
    return _BY_OPENMP if kind is Kind.NATIVE and "openmp" in job.trainer.info.libs else LOADING[kind]


def computing(job: WalkedJob, facts: WalkedFacts) -> Computing:
    """Advice on what the job gives its GPU."""
    return COMPUTING[framework_of(job, kind_of(job, facts))]


def fixes(hints: Hints, count: int = 0, *, in_words: bool = False) -> tuple[Fix, ...]:
    """The hints with ``count`` in their holes; ``in_words``: without commands, which name arguments of loaders that the job has not."""
    return tuple(Fix(_with(one.text, count), "" if in_words else _with(one.command, count)) for one in hints)


def numbers_in(told: Iterable[Fix], kind: Kind) -> frozenset[int]:
    """Numbers of loaders that fixes of a program of this kind name in their commands."""
    patterns = _numbered(kind)
    return frozenset(int(found[1]) for one in told for pattern in patterns if one.command and (found := pattern.fullmatch(one.command)))


@cache
def _numbered(kind: Kind) -> tuple[re.Pattern[str], ...]:
    """Patterns of the kind's commands that take a number of loaders: its first group."""
    ways = LOADING[kind]
    commands = {hint.command for name in Loading.__struct_fields__ if isinstance(hints := getattr(ways, name), tuple) for hint in hints}
    return tuple(re.compile(re.escape(one).replace(r"\{:d\}", "(\\d+)")) for one in sorted(commands) if "{:d}" in one)


def _with(template: str, count: int) -> str:
    return filled(template, *[count] * template.count("{:d}")) if "{:d}" in template else template


def in_flight(job: WalkedJob, facts: WalkedFacts) -> tuple[Fix, ...]:
    """Fixes that double the requests in flight, if the CPUs have room for twice the loaders; without a command for a program's threads."""
    if facts.host.busy and sum(one.run + one.others_run for one in job.workers or [job.trainer]) > _spare(job, facts):
        return ()
    in_words = not job.workers and bool(threads_wait(job, job.trainer))
    return fixes(loading(job, facts).in_flight, 2 * max(1, len(job.workers)), in_words=in_words)


def first_loaders(job: WalkedJob, facts: WalkedFacts) -> int:
    """How many loaders to begin with, for a job that has none: as many as CPUs are left, and one in place of the main thread."""
    return min(FIRST_LOADERS, len(capacity(job, facts).allowed), 1 + room(job, facts))


def room(job: WalkedJob, facts: WalkedFacts) -> int:
    """How many more processes could run on the job's CPUs: idle ones, and those on which it only spins. One, where that is not known."""
    return max(0, int(_spare(job, facts))) if facts.host.busy else 1


def _spare(job: WalkedJob, facts: WalkedFacts) -> float:
    """CPUs that the job may use and does not, those on which it only spins among them, rounded up by a half."""
    return capacity(job, facts).idle_inside + job.spun + policy.HALF
