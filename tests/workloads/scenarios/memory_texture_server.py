"""A renderer asks a texture server for tiles over a UNIX socket; the server's own container is resized, its mapped textures do not fit.

Truth: the GPU starves (input-bound) because the limit of the container in which `texture_server` runs leaves its page cache an eighth of
the mapped textures (memory-pressure): nearly each tile's pages have been dropped and are read again, and the server sleeps in major faults.
The renderer is in no such group, the disk is as fast as ever, and nobody took the memory. Victims are `texture_server` and `renderer`.
Lost: 0.7 of the GPU's time. A larger limit for the server's container would fix it; more threads of the renderer would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup, native, slow_disk, tight_memory
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROOM_BYTES = slow_disk.FILE_BYTES // 8
_TILES = "enum { TEXTURES = 192 << 20, PAGE = 4096, PAGES = 1800, TILE = 512 << 10 };"
_TEXTURE_SERVER = (
    _TILES
    + """
int main(void) {
    int file = open(in_folder("samples"), O_RDONLY);
    const unsigned char *textures = mmap(NULL, TEXTURES, PROT_READ, MAP_SHARED, file, 0);
    unsigned char *tile = calloc(TILE, 1), *block = malloc(1 << 20), number;
    unsigned random = 7;
    end_with_parent();
    require(textures != MAP_FAILED, "mmap");
    madvise((void *)textures, TEXTURES, MADV_RANDOM);
    while (read(file, block, 1 << 20) > 0) {}  /* once through, so that all of it is cached */
    int listener = bound_at("textures.sock", SOCK_STREAM), client = accept(listener, NULL, NULL);
    while (read_all(client, &number, 1)) {
        for (int page = 0; page < PAGES; page++) tile[page] = textures[(size_t)(rand_r(&random) % (TEXTURES / PAGE)) * PAGE];
        burn_ms(1);
        if (!write_all(client, tile, TILE)) break;
    }
    return 0;
}
"""
)
_RENDERER = (
    _TILES
    + """
QUEUE(spare, 3);
QUEUE(tiles, 2);

static void *fetch(void *unused) {
    int server = connected_to("textures.sock", SOCK_STREAM);
    name_thread("tex_fetch");
    for (;;) {
        void *tile = get(&spare);
        require(write_all(server, "?", 1) && read_all(server, tile, TILE), "textures.sock");
        put(&tiles, tile);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 2200u << 20);
    for (int i = 0; i < 3; i++) put(&spare, pinned(TILE));
    run_thread(fetch, NULL);
    for (;;) {
        void *tile = get(&tiles);
        gpu_copy(tile, TILE, TO_DEVICE);
        for (int bounce = 0; bounce < 5; bounce++) gpu_launch(5);
        gpu_wait();
        put(&spare, tile);
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("tile_renderer --scene city.usd --textures unix:textures.sock")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    programs = native.built(running, tile_renderer=_RENDERER, texture_server=_TEXTURE_SERVER)
    with slow_disk.file(running), cgroup.group("memory", running.name) as group, programs:
        (running.folder / "group").symlink_to(group)
        with native.beside(running, "texture_server --cache mmap --listen textures.sock", group):
            yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    group = (running.folder / "group").resolve()
    cgroup.limit_memory(group, cgroup.unreclaimable_bytes(group) + _ROOM_BYTES)
    yield
    cgroup.limit_memory(group, 1 << 40)


def missing() -> str:
    return native.missing() or tight_memory.missing()


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, prepare, needs=missing)
