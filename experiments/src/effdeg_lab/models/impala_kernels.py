"""The convolutions of IMPALA's network, computed by Triton kernels.

With 16 and 32 channels, a convolution is bound by memory, and a library's kernels are made for many more. Here each
kernel does all that it can with what it has read: ReLU before a convolution; the bias, what is passed around and the
mask of a ReLU after it; and the first convolution, on the largest frames, with the pooling that follows.

Frames and features have channels last. Everything is in bf16 with sums in float32, as under autocast. Weights
are rounded by the kernels that use them, and their gradients are not.

The three taps of a row read neighboring pixels, which lie side by side in memory: they are one tile, with room for a
fourth tap, of zeros, because tiles have power-of-two sides.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Pixels of a tile, warps, stages of the loop over tiles, and the number of programs among which the tiles are divided;
# of the first two by the number of inputs.
CONVOLVE = {
    16: {"PIXELS": 128, "num_warps": 4, "num_stages": 2},
    32: {"PIXELS": 64, "num_warps": 4, "num_stages": 2},
}
SUM_WEIGHTS = {
    16: {"PIXELS": 128, "num_warps": 4, "num_stages": 3},
    32: {"PIXELS": 128, "num_warps": 4, "num_stages": 2},
}
LOOK = {"PIXELS": 64, "num_warps": 4}
SUM_LOOK = {"PIXELS": 64, "num_warps": 4, "num_stages": 1}
POOL = {"PIXELS": 64, "num_warps": 4}
PROGRAMS = {"convolve": 1056, "sum_weights": 264, "sum_look": 1056}
_MOST_PIXELS = 256  # of a tile


@triton.jit
def _load_row(
    x, pixels, row, column, TAP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr
):
    """Load what one row of taps reads: pixels × (four taps × inputs), the fourth of zeros."""
    part = tl.arange(0, 4 * INPUTS)
    right = column[:, None] + (part // INPUTS)[None, :] - 1
    inside = (row + TAP - 1 >= 0) & (row + TAP - 1 < HEIGHT)
    inside = inside[:, None] & (right >= 0) & (right < WIDTH) & (part < 3 * INPUTS)[None, :]
    place = (pixels + (TAP - 1) * WIDTH)[:, None] * INPUTS + (part - INPUTS)[None, :]
    return tl.load(x + place, mask=inside, other=0.0)


@triton.jit
def _load_weights(weight, TAP: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BACKWARD: tl.constexpr):
    """Load the weights of a row of taps, (four taps × inputs) × outputs: of a convolution, or of its gradient."""
    part, output = tl.arange(0, 4 * INPUTS), tl.arange(0, OUTPUTS)
    inside = (part < 3 * INPUTS)[:, None]
    if BACKWARD:  # taps in the opposite order; what is given is inputs × taps × outputs
        tap = 3 * (2 - TAP) + 2 - part // INPUTS
        place = ((part % INPUTS) * 9 + tap)[:, None] * OUTPUTS + output[None, :]
    else:  # outputs × taps × inputs
        place = part[:, None] + (output * 9 + 3 * TAP)[None, :] * INPUTS
    return tl.load(weight + place, mask=inside, other=0.0)


@triton.jit
def convolve(
    x, weight, bias, mask, added, out, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, BACKWARD: tl.constexpr, MASK: tl.constexpr, ADD: tl.constexpr,
    PIXELS: tl.constexpr,
):  # fmt: skip
    """Convolve x, with ReLU before, after, or both, or take a gradient back; then mask by a ReLU, and add a tensor."""
    kind = x.dtype.element_ty
    output = tl.arange(0, OUTPUTS)
    upper = _load_weights(weight, 0, INPUTS, OUTPUTS, BACKWARD).to(kind)
    middle = _load_weights(weight, 1, INPUTS, OUTPUTS, BACKWARD).to(kind)
    lower = _load_weights(weight, 2, INPUTS, OUTPUTS, BACKWARD).to(kind)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        pixels = tile * PIXELS + tl.arange(0, PIXELS)
        row, column = pixels // WIDTH % HEIGHT, pixels % WIDTH
        above = _load_row(x, pixels, row, column, 0, HEIGHT, WIDTH, INPUTS)
        here = _load_row(x, pixels, row, column, 1, HEIGHT, WIDTH, INPUTS)
        below = _load_row(x, pixels, row, column, 2, HEIGHT, WIDTH, INPUTS)
        if BEFORE:
            above, here, below = tl.maximum(above, 0.0), tl.maximum(here, 0.0), tl.maximum(below, 0.0)
        total = tl.dot(above.to(kind), upper)
        total = tl.dot(here.to(kind), middle, total)
        total = tl.dot(below.to(kind), lower, total)
        place = pixels[:, None] * OUTPUTS + output[None, :]
        if not BACKWARD:
            total += tl.load(bias + output)[None, :]
        if AFTER:
            total = tl.maximum(total, 0.0)
        if MASK:
            total = tl.where(tl.load(mask + place) > 0, total, 0.0)
        if ADD:
            total += tl.load(added + place).to(tl.float32)
        tl.store(out + place, total.to(kind))


@triton.jit
def sum_weights(
    x, dy, sums, tiles, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    RECTIFY: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Sum up the gradient of a row of taps, and that of the biases, over this program's tiles."""
    kind = x.dtype.element_ty
    tap, program, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    part, output = tl.arange(0, 4 * INPUTS), tl.arange(0, OUTPUTS)
    total, biases = tl.zeros((4 * INPUTS, OUTPUTS), tl.float32), tl.zeros((OUTPUTS,), tl.float32)
    for tile in range(program, tiles, programs):
        pixels = tile * PIXELS + tl.arange(0, PIXELS)
        row, column = pixels // WIDTH % HEIGHT, pixels % WIDTH
        near = _load_row(x, pixels, row, column, tap, HEIGHT, WIDTH, INPUTS)
        if RECTIFY:
            near = tl.maximum(near, 0.0)
        gradient = tl.load(dy + pixels[:, None] * OUTPUTS + output[None, :])
        total = tl.dot(tl.trans(near.to(kind)), gradient, total)
        biases += tl.sum(gradient.to(tl.float32), 0)
    sums += (program * 3 + tap) * (4 * INPUTS + 1) * OUTPUTS
    tl.store(sums + part[:, None] * OUTPUTS + output[None, :], total)
    tl.store(sums + 4 * INPUTS * OUTPUTS + output, biases)


@triton.jit
def _load_patch(frames, frame, top, left, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Load patches of 3 × 3 pixels with three channels, as 27 numbers and five zeros."""
    part = tl.arange(0, 32)
    row, column = top[:, None] + (part // 9)[None, :], left[:, None] + (part % 9 // 3)[None, :]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH) & (part < 27)[None, :]
    place = ((frame[:, None] * HEIGHT + row) * WIDTH + column) * 3 + (part % 3)[None, :]
    return tl.load(frames + place, mask=inside, other=0.0)


@triton.jit
def look(
    frames, weight, bias, out, places,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Convolve frames; of every 3 × 3 of the results, two apart, keep the largest and its place."""
    kind = out.dtype.element_ty
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixels // (WIDTH // 2) % (HEIGHT // 2), pixels % (WIDTH // 2)
    frame = pixels // (WIDTH // 2 * (HEIGHT // 2))
    part, output = tl.arange(0, 32), tl.arange(0, OUTPUTS)
    weights = tl.load(weight + part[:, None] + output[None, :] * 27, mask=(part < 27)[:, None], other=0.0).to(kind)
    biases = tl.load(bias + output)[None, :]
    best = tl.full((PIXELS, OUTPUTS), float("-inf"), tl.float32)
    where = tl.zeros((PIXELS, OUTPUTS), tl.int32)
    for place in tl.static_range(9):
        top, left = 2 * row - 2 + place // 3, 2 * column - 2 + place % 3
        patch = _load_patch(frames, frame, top, left, HEIGHT, WIDTH)
        # Rounded before they are compared, as they are where each operation is on its own.
        found = (tl.dot(patch, weights) + biases).to(kind).to(tl.float32)
        better = (found > best) & ((top >= -1) & (left >= -1))[:, None]
        best, where = tl.where(better, found, best), tl.where(better, place, where)
    to = pixels[:, None] * OUTPUTS + output[None, :]
    tl.store(out + to, best.to(kind))
    tl.store(places + to, where.to(tl.uint8))


@triton.jit
def sum_look(
    frames, dy, places, sums, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Sum up the gradients of the first weights and biases over this program's tiles."""
    part, output = tl.arange(0, 32), tl.arange(0, OUTPUTS)
    total, biases = tl.zeros((32, OUTPUTS), tl.float32), tl.zeros((OUTPUTS,), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        pixels = tile * PIXELS + tl.arange(0, PIXELS)
        row, column = pixels // (WIDTH // 2) % (HEIGHT // 2), pixels % (WIDTH // 2)
        frame = pixels // (WIDTH // 2 * (HEIGHT // 2))
        at = pixels[:, None] * OUTPUTS + output[None, :]
        gradient, where = tl.load(dy + at), tl.load(places + at)
        for place in tl.static_range(9):
            top, left = 2 * row - 2 + place // 3, 2 * column - 2 + place % 3
            patch = _load_patch(frames, frame, top, left, HEIGHT, WIDTH)
            chosen = tl.where(where == place, gradient, 0.0).to(patch.dtype)
            total = tl.dot(tl.trans(patch), chosen, total)
        biases += tl.sum(gradient.to(tl.float32), 0)
    sums += tl.program_id(0) * 33 * OUTPUTS
    tl.store(sums + part[:, None] * OUTPUTS + output[None, :], total)
    tl.store(sums + 32 * OUTPUTS + output, biases)


@triton.jit
def pool(
    x, out, places, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Of every 3 × 3 pixels, two apart, keep the largest and its place."""
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column = pixels // (WIDTH // 2) % (HEIGHT // 2), pixels % (WIDTH // 2)
    frame = pixels // (WIDTH // 2 * (HEIGHT // 2))
    channel = tl.arange(0, CHANNELS)
    best = tl.full((PIXELS, CHANNELS), float("-inf"), tl.float32)
    where = tl.zeros((PIXELS, CHANNELS), tl.int32)
    for place in tl.static_range(9):
        down, right = 2 * row - 1 + place // 3, 2 * column - 1 + place % 3
        at = ((frame * HEIGHT + down) * WIDTH + right)[:, None] * CHANNELS + channel[None, :]
        found = tl.load(x + at, mask=((down >= 0) & (right >= 0))[:, None], other=float("-inf")).to(tl.float32)
        better = found > best
        best, where = tl.where(better, found, best), tl.where(better, place, where)
    to = pixels[:, None] * CHANNELS + channel[None, :]
    tl.store(out + to, best.to(out.dtype.element_ty))
    tl.store(places + to, where.to(tl.uint8))


@triton.jit
def unpool(
    dy, places, dx, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Add up, for every pixel, the gradients of the results (up to four) that it was the largest for."""
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column, frame = pixels // WIDTH % HEIGHT, pixels % WIDTH, pixels // (WIDTH * HEIGHT)
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for corner in tl.static_range(4):
        # A pixel of an even row is in the middle of one result; of an odd row, at the end of one and the start of one.
        down, right = row // 2 + corner // 2, column // 2 + corner % 2
        place = (row - 2 * down + 1) * 3 + column - 2 * right + 1
        inside = (row >= 2 * down - 1) & (column >= 2 * right - 1) & (down < HEIGHT // 2) & (right < WIDTH // 2)
        at = ((frame * (HEIGHT // 2) + down) * (WIDTH // 2) + right)[:, None] * CHANNELS + channel[None, :]
        where = tl.load(places + at, mask=inside[:, None], other=255)
        gradient = tl.load(dy + at, mask=inside[:, None], other=0.0).to(tl.float32)
        total += tl.where(where == place[:, None], gradient, 0.0)
    tl.store(dx + pixels[:, None] * CHANNELS + channel[None, :], total.to(dx.dtype.element_ty))


def can_see(frames: Tensor) -> bool:
    """Return whether the kernels can run the convolutions on these frames, with channels first."""
    count, channels, height, width = frames.shape
    fits = channels == 3 and height % 8 == 0 and width % 8 == 0 and count * height * width // 64 % _MOST_PIXELS == 0
    # Places are 32-bit integers. Gradients of frames are not computed.
    return fits and count * height * width * 4 < 2**31 and not frames.requires_grad


def see(frames: Tensor, parameters: list[Tensor]) -> Tensor:
    """Run the convolutions of IMPALA's network on frames, given the weight and the bias of each in order.

    On a GPU the result is in bf16. It is differentiable once, by the parameters.
    """
    kind = torch.bfloat16 if frames.is_cuda else torch.float32  # a CPU is there for tests
    frames = frames.to(kind).permute(0, 2, 3, 1).contiguous()
    given = [each.contiguous(memory_format=torch.channels_last) if each.dim() > 1 else each for each in parameters]
    return _see(frames, given)[-1].permute(0, 3, 1, 2)


_OF_STAGE, _KEPT = 10, 6  # parameters of a stage, and what is kept of it: places, then what each convolution gives


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, before: bool = False, after: bool = False,
    mask: Tensor | None = None, added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolve, with ReLU before, after, or both; or without a bias take a gradient back."""
    backward = bias is None
    count, height, width, inputs = x.shape
    outputs = weight.shape[1 if backward else 0]
    out = x.new_empty(count, height, width, outputs)
    options = CONVOLVE[inputs]
    tiles = count * height * width // options["PIXELS"]
    convolve[(min(tiles, PROGRAMS["convolve"]),)](
        x, weight, bias, mask, added, out, tiles, height, width, inputs, outputs,
        before, after, backward, mask is not None, added is not None, **options,
    )  # fmt: skip
    return out


def _sum_weights(x: Tensor, dy: Tensor, *, rectify: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients of a convolution's weight and bias."""
    count, height, width, inputs = x.shape
    outputs = dy.shape[3]
    options = SUM_WEIGHTS[inputs]
    tiles = count * height * width // options["PIXELS"]
    programs = min(tiles, PROGRAMS["sum_weights"])
    sums = torch.empty(programs, 3, 4 * inputs + 1, outputs, device=x.device)
    sum_weights[(3, programs)](x, dy, sums, tiles, height, width, inputs, outputs, rectify, **options)
    total = sums.sum(0)
    return _reorder(total[:, : 3 * inputs].reshape(3, 3, inputs, outputs)), total[0, -1].clone()


def _reorder(total: Tensor) -> Tensor:
    """Order a gradient, rows × columns × inputs × outputs, as a weight with channels last is ordered."""
    return total.permute(3, 0, 1, 2).contiguous().permute(0, 3, 1, 2)


@torch.library.custom_op("effdeg_lab::see", mutates_args=())
def _see(frames: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Return what is kept of every stage; the last is the result."""
    x, kept = frames, list[Tensor]()
    for stage in range(0, len(parameters), _OF_STAGE):
        weight, bias, *residual = parameters[stage : stage + _OF_STAGE]
        count, height, width, _ = x.shape
        pooled = x.new_empty(count, height // 2, width // 2, len(weight))
        places = torch.empty_like(pooled, dtype=torch.uint8)
        if stage == 0:
            tiles = pooled[..., 0].numel() // LOOK["PIXELS"]
            look[(tiles,)](x, weight, bias, pooled, places, height, width, len(weight), **LOOK)
        else:
            tiles = pooled[..., 0].numel() // POOL["PIXELS"]
            pool[(tiles,)](_convolve(x, weight, bias), pooled, places, height, width, len(weight), **POOL)
        x = pooled
        kept += [places, x]
        for first in (0, 4):
            hidden = _convolve(x, residual[first], residual[first + 1], before=True, after=True)
            x = _convolve(hidden, residual[first + 2], residual[first + 3], added=x)
            kept += [hidden, x]
    return kept


@torch.library.custom_op("effdeg_lab::see_backward", mutates_args=())
def _see_backward(frames: Tensor, dy: Tensor, parameters: list[Tensor], kept: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the parameters."""
    gradients = list[Tensor]()  # from the last to the first
    for stage in reversed(range(len(parameters) // _OF_STAGE)):
        weight, _, *residual = parameters[stage * _OF_STAGE :][:_OF_STAGE]
        places, *features = kept[stage * _KEPT :][:_KEPT]
        for first in (2, 0):
            start, hidden = features[first : first + 2]
            one, two = residual[2 * first], residual[2 * first + 2]
            gradients += reversed(_sum_weights(hidden, dy, rectify=False))
            dhidden = _convolve(dy, two, None, mask=hidden)
            gradients += reversed(_sum_weights(start, dhidden, rectify=True))
            dy = _convolve(dhidden, one, None, mask=start, added=dy)
        count, height, width, outputs = dy.shape
        if stage == 0:
            tiles = count * height * width // SUM_LOOK["PIXELS"]
            programs = min(tiles, PROGRAMS["sum_look"])
            sums = torch.empty(programs, 33, outputs, device=dy.device)
            sum_look[(programs,)](frames, dy, places, sums, tiles, 2 * height, 2 * width, outputs, **SUM_LOOK)
            total = sums.sum(0)
            gradients += [total[-1].clone(), _reorder(total[:27].view(3, 3, 3, outputs))]
        else:
            dconvolved = dy.new_empty(count, 2 * height, 2 * width, outputs)
            tiles = 4 * count * height * width // POOL["PIXELS"]
            unpool[(tiles,)](dy, places, dconvolved, 2 * height, 2 * width, outputs, **POOL)
            gradients += reversed(_sum_weights(kept[stage * _KEPT - 1], dconvolved, rectify=False))
            dy = _convolve(dconvolved, weight, None)
    return gradients[::-1]


@_see.register_fake
def _(frames: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    kept = list[Tensor]()
    count, height, width, _ = frames.shape
    for weight in parameters[::_OF_STAGE]:
        height, width = height // 2, width // 2
        shape = (count, height, width, len(weight))
        kept += [frames.new_empty(shape, dtype=torch.uint8), *(frames.new_empty(shape) for _ in range(_KEPT - 1))]
    return kept


@_see_backward.register_fake
def _(frames, dy, parameters, kept):  # noqa: ARG001
    return [torch.empty_like(each) for each in parameters]


def _keep(ctx, inputs, output):
    frames, parameters = inputs
    ctx.save_for_backward(frames, *parameters, *output)
    ctx.count = len(parameters)


def _differentiate(ctx, gradients):
    frames, *saved = ctx.saved_tensors
    parameters, kept = saved[: ctx.count], saved[ctx.count :]
    return None, _see_backward(frames, gradients[-1].contiguous(), parameters, kept)


_see.register_autograd(_differentiate, setup_context=_keep)
