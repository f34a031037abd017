"""Pre-training by a program in C and CUDA: it begins to validate every forty steps and to save every sixty, by a thread of its own.

Truth: healthy. Validation is on the GPU as training is, with shorter kernels and no gaps; to save, weights are copied out in some
milliseconds and a thread writes them to the disk while training goes on. GPU use is bursty for a moment, steps are as long as ever, nobody
is a victim or to blame, and there is nothing to fix.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_TRAIN_GPT2 = """
enum { WEIGHTS = 24 << 20 };
QUEUE(spare, 1);
QUEUE(saved, 1);

static void *save(void *unused) {
    name_thread("checkpoint");
    for (;;) {
        void *weights = get(&saved);
        int file = open(in_folder("model.bin.tmp"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        require(write_all(file, weights, WEIGHTS) && !fsync(file) && !close(file), "checkpoint");
        put(&spare, weights);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 2000 << 20);
    void *tokens = pinned(1 << 16);
    put(&spare, pinned(WEIGHTS));
    run_thread(save, NULL);
    for (long number = 1;; number++) {
        int later = raised("later");
        gpu_copy(tokens, 1 << 16, TO_DEVICE);
        for (int layer = 0; layer < 12; layer++) gpu_launch(3.5);
        gpu_wait();
        step();
        for (int batch = 0; later && number % 40 == 0 && batch < 12; batch++, gpu_wait()) gpu_launch(12);
        if (later && number % 60 == 0) {
            void *weights = get(&spare);
            gpu_copy(weights, WEIGHTS, TO_HOST);
            gpu_wait();
            put(&saved, weights);
        }
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("train_gpt2cu -i fineweb_train_*.bin -j fineweb_val_*.bin -o log124M -v 40 -n 60")


disturb = partial(native.flag, name="later")
SCENARIO = Scenario(HEALTHY, train, disturb, partial(native.built, train_gpt2cu=_TRAIN_GPT2), needs=native.missing)
