"""The GPU as a training script sees it: the CUDA runtime by ctypes, with the calls torch would make."""

from __future__ import annotations

import ctypes
import mmap
import os

SMS = 132
KERNELS = os.environ.get("GPUTOP_KERNELS", "")
"""On a real GPU the library of `kernels.cu`, which brings the CUDA runtime along; empty before the stub."""
_HOST_BYTES = 1 << 30 if KERNELS else 1 << 12
"""The stub moves nothing: no buffer need be as large as what is copied."""
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_AUTO, _SPIN = 0, 1


class Dim3(ctypes.Structure):
    """dim3, passed by value."""

    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class CudaError(Exception):
    """A CUDA call returned an error."""


class Gpu:
    """One visible device. ``spin`` makes every wait burn a CPU, as CUDA does by default; else $GPUTOP_CUDA_SCHEDULE says how to wait."""

    def __init__(self, device: int = 0, spin: bool = False, memory_bytes: int = 2 << 30) -> None:
        self._cuda = ctypes.CDLL(KERNELS or "libcudart.so.12")
        self.select(device)
        self._check(self._cuda.cudaSetDeviceFlags(_SPIN if spin else _AUTO))
        self._memory = self.allocate(memory_bytes)
        self._host = (ctypes.c_char * _HOST_BYTES).from_buffer(mmap.mmap(-1, _HOST_BYTES))
        self._pinned = ctypes.c_void_p()
        self._check(self._cuda.cudaHostAlloc(ctypes.byref(self._pinned), ctypes.c_size_t(_HOST_BYTES), 0))
        self._work = ctypes.cast(self._cuda.gputop_work, ctypes.c_void_p)
        self._barrier = ctypes.cast(self._cuda.ncclGputopBarrier, ctypes.c_void_p)
        self._length = ctypes.c_uint64()
        self._params = (ctypes.c_void_p * 1)(ctypes.addressof(self._length))
        self._block = Dim3(256, 1, 1)
        self._grids: dict[int, Dim3] = {}

    def select(self, device: int) -> None:
        """Let this thread's calls go to ``device``, as `torch.cuda.set_device` does: one process may use several."""
        self._check(self._cuda.cudaSetDevice(device))

    def launch(self, length_ms: float, blocks: int = SMS) -> None:
        """A kernel of ``length_ms`` on ``blocks`` of the device's 132 SMs; returns at once."""
        self._length.value = int(length_ms * 1e6)
        grid = self._grids.get(blocks) or self._grids.setdefault(blocks, Dim3(blocks, 1, 1))
        self._check(self._cuda.cudaLaunchKernel(self._work, grid, self._block, self._params, ctypes.c_size_t(0), None))

    def all_reduce(self, arrived: ctypes.c_uint64, target: int, length_ms: float = 0.5) -> None:
        """A collective: a kernel on few SMs that spins until ``arrived`` (shared memory) is ``target``."""
        length, address, goal = ctypes.c_uint64(int(length_ms * 1e6)), ctypes.c_uint64(ctypes.addressof(arrived)), ctypes.c_uint64(target)
        params = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (length, address, goal)))
        self._check(self._cuda.cudaLaunchKernel(self._barrier, Dim3(8, 1, 1), self._block, params, ctypes.c_size_t(0), None))

    def synchronize(self) -> None:
        """Wait for the stream, as `loss.item()` does."""
        self._check(self._cuda.cudaStreamSynchronize(None))

    def copy_in(self, count: int, pinned: bool = False) -> None:
        """``tensor.to(device)`` of ``count`` bytes: pageable returns when they are there, ``pinned`` (non_blocking) at once."""
        host = self._pinned if pinned else self._host
        self._check(self._cuda.cudaMemcpyAsync(self._memory, host, ctypes.c_size_t(count), _HOST_TO_DEVICE, None))

    def copy_out(self, count: int = 4) -> None:
        """``tensor.cpu()`` of ``count`` bytes."""
        self._check(self._cuda.cudaMemcpyAsync(self._host, self._memory, ctypes.c_size_t(count), _DEVICE_TO_HOST, None))

    def allocate(self, count: int) -> ctypes.c_void_p:
        """``count`` bytes of the GPU's memory."""
        memory = ctypes.c_void_p()
        self._check(self._cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(count)))
        return memory

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise CudaError(f"CUDA error {code}")
