"""Running many examples on a device: batches that fit its memory, and asynchronous transfers."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Batches:
    """Batches of a size that is halved when memory runs out."""

    def __init__(self, size: int | None, device: torch.device | None) -> None:
        self.size = size or (256 if device is None or device.type == "cpu" else 1024)

    def next_size(self, remaining: int) -> int:
        """Return the size of the next batch if this many examples remain, such that all batches are about equal."""
        # 3,200 points at a batch size of 1,024 run as four times 800, not three times 1,024 and 128.
        return -(-remaining // -(-remaining // self.size))

    def run(self, run: Callable[[slice], T], total: int) -> list[T]:
        """Run a function on ``total`` examples, one batch after another, and return the list of its results."""
        kept: list[T] = []
        done = 0
        while done < total:
            part = slice(done, done + self.next_size(total - done))
            try:
                kept.append(run(part))
                done = part.stop
                continue
            except torch.OutOfMemoryError:
                if self.size == 1:
                    raise
            # Here the error no longer keeps alive what the failed batch had allocated.
            self.size = max(1, min(self.size, part.stop - part.start) // 2)
            torch.cuda.empty_cache()
        return kept


def send(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Move a tensor to a device; from the CPU to a GPU asynchronously."""
    if device is not None and device.type == "cuda" and tensor.device.type == "cpu":
        # Only from pinned memory is the copy asynchronous; torch keeps the pinned buffer until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def receive(tensor: Tensor) -> Callable[[], Tensor]:
    """Start copying a tensor to the CPU; return a function that waits for the copy and returns it."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    # A plain tensor.cpu() later on would also wait for all the work queued on the GPU in between.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        copied.synchronize()
        return copy

    return wait


def is_readable(values: Tensor) -> bool:
    """Return whether the values of a tensor can be read: not in torch.compile, vmap or the capture of a CUDA graph."""
    return not is_traced() and not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def is_traced() -> bool:
    """Return whether tensors stand for others, so that their values cannot be read: in torch.compile or vmap."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
