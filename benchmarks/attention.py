"""How fast torch's kernels of attention are by the number of tokens, and whether their gradients are finite."""

from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.timing import Record, device, interleaved

# Of ViTs with patches of 8 and 16 pixels on images of 64 and 224, with the mean of the patches and with a class token.
TOKENS = (64, 65, 196, 197)
KERNELS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
KERNELS |= {"flash": SDPBackend.FLASH_ATTENTION}
IMAGES, HEADS, WIDTH = 1024, 6, 64
CALLS, REPEATS = 10, 5
# Softmax does not change if all logits do. With these, cuDNN's gradients were NaN for 64 tokens.
LOGITS = -120.0


def attention_kernels() -> Record:
    """Time attention in ViT-S, forward and backward, in bf16, and check gradients where all logits are about -120."""
    rows = []
    for tokens in TOKENS:
        generator = torch.Generator(device()).manual_seed(0)
        make = partial(torch.randn, generator=generator, device=device(), dtype=torch.bfloat16)
        qkv, upstream = make(IMAGES, tokens, 3, HEADS, WIDTH), make(IMAGES, HEADS, tokens, WIDTH)
        shifted = qkv.clone()
        shifted[:, :, 0, :, 0], shifted[:, :, 1, :, 0] = 1.0, LOGITS * WIDTH**0.5
        finite = [_differentiate(each, shifted, upstream).isfinite().all().item() for each in KERNELS.values()]
        calls = [partial(_repeat, each, qkv, upstream) for each in KERNELS.values()]
        seconds = interleaved(*calls, repeats=REPEATS)
        rows += [
            {"tokens": tokens, "kernel": name, "milliseconds": 1e3 * each / CALLS, "finite": right}
            for name, each, right in zip(KERNELS, seconds, finite, strict=True)
        ]
    detail = f"{IMAGES:,} images, {HEADS} heads of {WIDTH}, bf16, forward and backward"
    return {"name": "attention by kernel", "detail": detail, "rows": rows}


def _differentiate(kernel: SDPBackend, qkv: Tensor, upstream: Tensor) -> Tensor:
    """Return the gradient for queries, keys and values, laid out as in the lab's ViT."""
    leaf = qkv.detach().requires_grad_()
    with sdpa_kernel(kernel):
        attended = scaled_dot_product_attention(*leaf.permute(2, 0, 3, 1, 4))
        (gradient,) = torch.autograd.grad(attended, leaf, upstream)
    return gradient


def _repeat(kernel: SDPBackend, qkv: Tensor, upstream: Tensor) -> None:
    for _ in range(CALLS):
        _differentiate(kernel, qkv, upstream)
