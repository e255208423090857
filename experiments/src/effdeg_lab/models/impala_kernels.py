"""The convolutions of IMPALA's network, computed by Triton kernels.

With 16 and 32 channels, a convolution is memory-bound, and the kernels of libraries are made for many more channels.
Here each kernel does as much as possible with what it has read: the ReLU before a convolution; the bias, the residual
connection and the mask of a ReLU after it; and, for the first convolution, on the largest frames, the pooling after it.

Frames and features have channels last. Everything is in bf16 with sums in float32, as under autocast. The kernels round
weights to bf16, but not their gradients.

What limits these kernels is that a pixel is read once for each tap. So two neighboring pixels are computed together:
their row of taps reads four pixels, which are adjacent in memory and form one row of a matrix product, with the weights
for each of the two pixels in separate columns, and zeros where a tap does not reach. The first convolution, on frames
padded from three to four channels, computes blocks of 2 × 2 pixels from 4 × 4.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

# Pairs of pixels in a tile (with pooling, pixels after it), warps, stages of the loop over tiles, and the number of
# programs that share the tiles; for the first two kernels, by the number of input channels.
CONVOLVE = {
    16: {"PAIRS": 64, "num_warps": 4, "num_stages": 3},
    32: {"PAIRS": 64, "num_warps": 4, "num_stages": 1},
}
SUM_WEIGHTS = {
    16: {"PAIRS": 128, "num_warps": 4, "num_stages": 2},
    32: {"PAIRS": 128, "num_warps": 8, "num_stages": 2},
}
LOOK = {"PIXELS": 64, "num_warps": 4, "num_stages": 3}
SUM_LOOK = {"PIXELS": 64, "num_warps": 4, "num_stages": 1}
POOL = {"PIXELS": 64, "num_warps": 4}
PROGRAMS = {"convolve": 1056, "sum_weights": 264, "look": 1056, "sum_look": 528}
_MOST = 128  # pairs, or pixels, of a tile


@triton.jit
def _load_row(
    x, pairs, row, column, TAP: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr,
    RECTIFY: tl.constexpr,
):  # fmt: skip
    """Load the inputs of one row of taps, pairs × (four pixels × inputs), optionally with ReLU."""
    part = tl.arange(0, 4 * INPUTS)
    right = column[:, None] + (part // INPUTS)[None, :] - 1
    inside = (row + TAP - 1 >= 0) & (row + TAP - 1 < HEIGHT)
    inside = inside[:, None] & (right >= 0) & (right < WIDTH)
    place = (2 * pairs + (TAP - 1) * WIDTH - 1)[:, None] * INPUTS + part[None, :]
    found = tl.load(x + place, mask=inside, other=0.0)
    if RECTIFY:
        found = tl.maximum(found, 0.0).to(x.dtype.element_ty)
    return found


@triton.jit
def _load_weights(weight, TAP: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BACKWARD: tl.constexpr):
    """Load the weights of a row of taps, (four pixels × inputs) × (two pixels × outputs).

    For the gradient of a convolution, taps are in reverse order.
    """
    part, output = tl.arange(0, 4 * INPUTS), tl.arange(0, 2 * OUTPUTS)
    tap = (part // INPUTS)[:, None] - (output // OUTPUTS)[None, :]
    given, wanted = (part % INPUTS)[:, None], (output % OUTPUTS)[None, :]
    if BACKWARD:  # in memory, inputs × taps × outputs
        place = (given * 9 + 8 - 3 * TAP - tap) * OUTPUTS + wanted
    else:  # outputs × taps × inputs
        place = (wanted * 9 + 3 * TAP + tap) * INPUTS + given
    return tl.load(weight + place, mask=(tap >= 0) & (tap < 3), other=0.0)


@triton.jit
def convolve(
    x, weight, bias, mask, added, out, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, BACKWARD: tl.constexpr, MASK: tl.constexpr, ADD: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Convolve x, with ReLU before or after, or propagate a gradient back; then mask by a ReLU, and add a tensor."""
    kind = x.dtype.element_ty
    output = tl.arange(0, 2 * OUTPUTS)
    upper = _load_weights(weight, 0, INPUTS, OUTPUTS, BACKWARD).to(kind)
    middle = _load_weights(weight, 1, INPUTS, OUTPUTS, BACKWARD).to(kind)
    lower = _load_weights(weight, 2, INPUTS, OUTPUTS, BACKWARD).to(kind)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        pairs = tile * PAIRS + tl.arange(0, PAIRS)
        row, column = pairs // (WIDTH // 2) % HEIGHT, pairs % (WIDTH // 2) * 2
        above = _load_row(x, pairs, row, column, 0, HEIGHT, WIDTH, INPUTS, BEFORE)
        here = _load_row(x, pairs, row, column, 1, HEIGHT, WIDTH, INPUTS, BEFORE)
        below = _load_row(x, pairs, row, column, 2, HEIGHT, WIDTH, INPUTS, BEFORE)
        total = tl.dot(above, upper)
        total = tl.dot(here, middle, total)
        total = tl.dot(below, lower, total)
        place = pairs[:, None] * (2 * OUTPUTS) + output[None, :]
        if not BACKWARD:
            total += tl.load(bias + output % OUTPUTS)[None, :]
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
    RECTIFY: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of weights, in the order of convolve's products, and of biases over this program's tiles."""
    part, output = tl.arange(0, 4 * INPUTS), tl.arange(0, 2 * OUTPUTS)
    upper = tl.zeros((4 * INPUTS, 2 * OUTPUTS), tl.float32)
    middle = tl.zeros((4 * INPUTS, 2 * OUTPUTS), tl.float32)
    lower = tl.zeros((4 * INPUTS, 2 * OUTPUTS), tl.float32)
    biases = tl.zeros((2 * OUTPUTS,), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        pairs = tile * PAIRS + tl.arange(0, PAIRS)
        row, column = pairs // (WIDTH // 2) % HEIGHT, pairs % (WIDTH // 2) * 2
        gradient = tl.load(dy + pairs[:, None] * (2 * OUTPUTS) + output[None, :])
        above = _load_row(x, pairs, row, column, 0, HEIGHT, WIDTH, INPUTS, RECTIFY)
        here = _load_row(x, pairs, row, column, 1, HEIGHT, WIDTH, INPUTS, RECTIFY)
        below = _load_row(x, pairs, row, column, 2, HEIGHT, WIDTH, INPUTS, RECTIFY)
        upper = tl.dot(tl.trans(above), gradient, upper)
        middle = tl.dot(tl.trans(here), gradient, middle)
        lower = tl.dot(tl.trans(below), gradient, lower)
        biases += tl.sum(gradient.to(tl.float32), 0)
    sums += tl.program_id(0) * (12 * INPUTS + 1) * (2 * OUTPUTS)
    place = part[:, None] * (2 * OUTPUTS) + output[None, :]
    tl.store(sums + place, upper)
    tl.store(sums + 4 * INPUTS * (2 * OUTPUTS) + place, middle)
    tl.store(sums + 8 * INPUTS * (2 * OUTPUTS) + place, lower)
    tl.store(sums + 12 * INPUTS * (2 * OUTPUTS) + output, biases)


@triton.jit
def _load_window(frames, frame, row, column, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Load 4 × 4 pixels with four channels around the block of 2 × 2 at (2 row, 2 column)."""
    part = tl.arange(0, 64)
    down, right = (2 * row - 1)[:, None] + (part // 16)[None, :], (2 * column - 1)[:, None] + (part // 4 % 4)[None, :]
    inside = (down >= 0) & (down < HEIGHT) & (right >= 0) & (right < WIDTH)
    place = ((frame[:, None] * HEIGHT + down) * WIDTH + (2 * column - 1)[:, None]) * 4 + (part % 16)[None, :]
    return tl.load(frames + place, mask=inside, other=0.0)


@triton.jit
def _load_first_weights(weight, DOWN: tl.constexpr, RIGHT: tl.constexpr, OUTPUTS: tl.constexpr):
    """Load the weights of one pixel of a block, (4 × 4 pixels × four channels) × outputs."""
    part, output = tl.arange(0, 64)[:, None], tl.arange(0, OUTPUTS)[None, :]
    row, column, channel = part // 16 - DOWN, part // 4 % 4 - RIGHT, part % 4
    inside = (row >= 0) & (row < 3) & (column >= 0) & (column < 3) & (channel < 3)
    return tl.load(weight + (output * 9 + row * 3 + column) * 3 + channel, mask=inside, other=0.0)


@triton.jit
def _keep_larger(best, where, window, weights, biases, possible, PLACE: tl.constexpr, KIND: tl.constexpr):
    """Convolve, and update the maximum so far and its place."""
    # Rounded before the comparison, as in separate operations.
    found = (tl.dot(window, weights) + biases).to(KIND).to(tl.float32)
    better = (found > best) & possible[:, None]
    return tl.where(better, found, best), tl.where(better, PLACE, where)


@triton.jit
def look(
    frames, weight, bias, out, places, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Convolve frames, then max-pool 3 × 3 pixels with stride 2; write the maxima and their places."""
    kind = out.dtype.element_ty
    output = tl.arange(0, OUTPUTS)
    biases = tl.load(bias + output)[None, :]
    w00 = _load_first_weights(weight, 0, 0, OUTPUTS).to(kind)
    w01 = _load_first_weights(weight, 0, 1, OUTPUTS).to(kind)
    w10 = _load_first_weights(weight, 1, 0, OUTPUTS).to(kind)
    w11 = _load_first_weights(weight, 1, 1, OUTPUTS).to(kind)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        pixels = tile * PIXELS + tl.arange(0, PIXELS)
        row, column = pixels // (WIDTH // 2) % (HEIGHT // 2), pixels % (WIDTH // 2)
        frame = pixels // (WIDTH // 2 * (HEIGHT // 2))
        best = tl.full((PIXELS, OUTPUTS), float("-inf"), tl.float32)
        where = tl.zeros((PIXELS, OUTPUTS), tl.int32)
        # The nine results are in the block of this pixel, and in those above, to the left, and above left.
        both = _load_window(frames, frame, row - 1, column - 1, HEIGHT, WIDTH)
        best, where = _keep_larger(best, where, both, w11, biases, (row > 0) & (column > 0), 0, kind)
        above = _load_window(frames, frame, row - 1, column, HEIGHT, WIDTH)
        best, where = _keep_larger(best, where, above, w10, biases, row > 0, 1, kind)
        best, where = _keep_larger(best, where, above, w11, biases, row > 0, 2, kind)
        left = _load_window(frames, frame, row, column - 1, HEIGHT, WIDTH)
        best, where = _keep_larger(best, where, left, w01, biases, column > 0, 3, kind)
        here = _load_window(frames, frame, row, column, HEIGHT, WIDTH)
        best, where = _keep_larger(best, where, here, w00, biases, row >= 0, 4, kind)
        best, where = _keep_larger(best, where, here, w01, biases, row >= 0, 5, kind)
        best, where = _keep_larger(best, where, left, w11, biases, column > 0, 6, kind)
        best, where = _keep_larger(best, where, here, w10, biases, row >= 0, 7, kind)
        best, where = _keep_larger(best, where, here, w11, biases, row >= 0, 8, kind)
        to = pixels[:, None] * OUTPUTS + output[None, :]
        tl.store(out + to, best.to(kind))
        tl.store(places + to, where.to(tl.uint8))


@triton.jit
def _load_gradient(dy, places, pixels, output, inside, OUTPUTS: tl.constexpr):
    """Load the gradients of pooled pixels, and the places of their maxima."""
    at = pixels[:, None] * OUTPUTS + output[None, :]
    gradient = tl.load(dy + at, mask=inside[:, None], other=0.0).to(tl.float32)
    return gradient, tl.load(places + at, mask=inside[:, None], other=255)


@triton.jit
def sum_look(
    frames, dy, places, sums, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the first weights, for each pixel of a block, and biases over this program's tiles."""
    kind = frames.dtype.element_ty
    part, output = tl.arange(0, 64), tl.arange(0, OUTPUTS)
    total00 = tl.zeros((64, OUTPUTS), tl.float32)
    total01 = tl.zeros((64, OUTPUTS), tl.float32)
    total10 = tl.zeros((64, OUTPUTS), tl.float32)
    total11 = tl.zeros((64, OUTPUTS), tl.float32)
    biases = tl.zeros((OUTPUTS,), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        pixels = tile * PIXELS + tl.arange(0, PIXELS)
        row, column = pixels // (WIDTH // 2) % (HEIGHT // 2), pixels % (WIDTH // 2)
        window = tl.trans(_load_window(frames, pixels // (WIDTH // 2 * (HEIGHT // 2)), row, column, HEIGHT, WIDTH))
        # The pixels of a block are in the windows of this pooled pixel and of the next ones.
        down, right = row + 1 < HEIGHT // 2, column + 1 < WIDTH // 2
        own, where = _load_gradient(dy, places, pixels, output, row >= 0, OUTPUTS)
        next_right, where_right = _load_gradient(dy, places, pixels + 1, output, right, OUTPUTS)
        next_down, where_down = _load_gradient(dy, places, pixels + WIDTH // 2, output, down, OUTPUTS)
        next_both, where_both = _load_gradient(dy, places, pixels + WIDTH // 2 + 1, output, down & right, OUTPUTS)
        d00 = tl.where(where == 4, own, 0.0)
        d01 = tl.where(where == 5, own, 0.0) + tl.where(where_right == 3, next_right, 0.0)
        d10 = tl.where(where == 7, own, 0.0) + tl.where(where_down == 1, next_down, 0.0)
        d11 = tl.where(where == 8, own, 0.0) + tl.where(where_right == 6, next_right, 0.0)
        d11 += tl.where(where_down == 2, next_down, 0.0) + tl.where(where_both == 0, next_both, 0.0)
        total00 = tl.dot(window, d00.to(kind), total00)
        total01 = tl.dot(window, d01.to(kind), total01)
        total10 = tl.dot(window, d10.to(kind), total10)
        total11 = tl.dot(window, d11.to(kind), total11)
        biases += tl.sum(own, 0)
    sums += tl.program_id(0) * 257 * OUTPUTS
    place = part[:, None] * OUTPUTS + output[None, :]
    tl.store(sums + place, total00)
    tl.store(sums + 64 * OUTPUTS + place, total01)
    tl.store(sums + 128 * OUTPUTS + place, total10)
    tl.store(sums + 192 * OUTPUTS + place, total11)
    tl.store(sums + 256 * OUTPUTS + output, biases)


@triton.jit
def pool(
    x, out, places, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    """Max-pool 3 × 3 pixels with stride 2; write the maxima and their places."""
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
    """Sum, for every pixel, the gradients of the pooled pixels (up to four) of which it is the maximum."""
    pixels = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row, column, frame = pixels // WIDTH % HEIGHT, pixels % WIDTH, pixels // (WIDTH * HEIGHT)
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for corner in tl.static_range(4):
        # An even row is the middle of one window; an odd row is the end of one and the start of the next.
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
    # Also after three poolings, rows must have whole pairs of pixels, and pairs whole tiles.
    fits = channels == 3 and height % 8 == 0 and width % 16 == 0 and count * height * width // 128 % _MOST == 0
    # Offsets are 32-bit integers. Gradients of frames are not computed.
    return fits and count * height * width * 4 < 2**31 and not frames.requires_grad


def see(frames: Tensor, parameters: list[Tensor]) -> Tensor:
    """Run the convolutions of IMPALA's network on frames, given the weight and the bias of each in order.

    On a GPU the result is in bf16. It is differentiable once, with respect to the parameters.
    """
    kind = torch.bfloat16 if frames.is_cuda else torch.float32  # tests run on a CPU
    frames = pad(frames.to(kind).permute(0, 2, 3, 1), (0, 1)).contiguous()
    given = [each.contiguous(memory_format=torch.channels_last) if each.dim() > 1 else each for each in parameters]
    return _see(frames, given)[-1].permute(0, 3, 1, 2)


_OF_STAGE, _KEPT = 10, 6  # parameters of a stage, and tensors saved: places, then the output of each convolution


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, before: bool = False, after: bool = False,
    mask: Tensor | None = None, added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolve, with ReLU before or after; or, without a bias, propagate a gradient back."""
    backward = bias is None
    count, height, width, inputs = x.shape
    outputs = weight.shape[1 if backward else 0]
    out = x.new_empty(count, height, width, outputs)
    options = CONVOLVE[inputs]
    tiles = count * height * width // 2 // options["PAIRS"]
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
    tiles = count * height * width // 2 // options["PAIRS"]
    programs = min(tiles, PROGRAMS["sum_weights"])
    sums = torch.empty(programs, 12 * inputs + 1, 2 * outputs, device=x.device)
    sum_weights[(programs,)](x, dy, sums, tiles, height, width, inputs, outputs, rectify, **options)
    total = sums.sum(0)
    products = total[:-1].view(3, 4, inputs, 2, outputs)
    # A tap of the right pixel reads one pixel further to the right than that of the left pixel.
    return _reorder(products[:, :3, :, 0] + products[:, 1:, :, 1]), total[-1].view(2, outputs).sum(0)


def _reorder(total: Tensor) -> Tensor:
    """Permute a gradient, rows × columns × inputs × outputs, to a weight with channels last."""
    return total.permute(3, 0, 1, 2).contiguous().permute(0, 3, 1, 2)


@torch.library.custom_op("effdeg_lab::see", mutates_args=())
def _see(frames: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Return the tensors saved in every stage; the last one is the result."""
    x, kept = frames, list[Tensor]()
    for stage in range(0, len(parameters), _OF_STAGE):
        weight, bias, *residual = parameters[stage : stage + _OF_STAGE]
        count, height, width, _ = x.shape
        pooled = x.new_empty(count, height // 2, width // 2, len(weight))
        places = torch.empty_like(pooled, dtype=torch.uint8)
        if stage == 0:
            tiles = pooled[..., 0].numel() // LOOK["PIXELS"]
            programs = min(tiles, PROGRAMS["look"])
            look[(programs,)](x, weight, bias, pooled, places, tiles, height, width, len(weight), **LOOK)
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
            sums = torch.empty(programs, 257, outputs, device=dy.device)
            sum_look[(programs,)](frames, dy, places, sums, tiles, 2 * height, 2 * width, outputs, **SUM_LOOK)
            total = sums.sum(0)
            of = total[:-1].view(2, 2, 4, 4, 4, outputs)
            taps = sum(of[down, right, down : down + 3, right : right + 3, :3] for down in (0, 1) for right in (0, 1))
            gradients += [total[-1].clone(), _reorder(taps)]
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
