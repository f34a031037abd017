"""A segmentation trainer reads tiles from an archive that a FUSE daemon mounts; the daemon decompresses every block it is asked for.

Truth: the GPU starves (input-bound) because `ratarmount`, a daemon of one thread, runs on a full core: from the onset on each block takes 9
ms of CPU time (slow-transform), before 1 ms. The only reading thread of `unet_train` sleeps in pread(2) meanwhile. No disk, no network, no
page cache takes part. Victim is `unet_train`, nobody is to blame. Lost: about 0.6 of the GPU's time. A daemon with more threads, or an
archive that is unpacked once, would fix it; a faster disk would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import fuse, native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_UNET = """
enum { BLOCK = 128 << 10, TILES = 8 * BLOCK };

int main(void) {
    int archive = open(in_folder("bucket/shard.bin"), O_RDONLY);
    char *tiles = pinned(TILES);
    gpu_open(0, 1400 << 20);
    for (off_t at = 0;; at += TILES) {
        for (int block = 0; block < 8; block++)
            require(pread(archive, tiles + block * BLOCK, BLOCK, (at + block * BLOCK) % (1 << 30)) == BLOCK, "pread");
        gpu_copy(tiles, TILES, TO_DEVICE);
        for (int layer = 0; layer < 9; layer++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("unet_train --archive bucket/shard.bin")


def mount(bucket: str) -> None:
    """Each block is decompressed."""

    def read(count: int) -> bytes:
        program.burn(9.0 if program.raised("slow") else 1.0)
        return bytes(count)

    fuse.serve(bucket, "ratarmount", read)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, unet_train=_UNET), fuse.mounted(running, mount):
        yield


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare, needs=fuse.missing)
