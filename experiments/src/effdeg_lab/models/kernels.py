"""The blocks of ViT-Tiny on 64 tokens, computed by six Triton kernels: two forward, four backward.

At a width of 192, a block computed operation by operation is bound by memory: what each operation writes, the next one
reads. Here half a block is one kernel forward: the hidden layer of the MLP and the attention weights never leave the
chip, and are computed again backward. Backward, what the gradients of the matrices are made of is kept until all
blocks are done, since products over all blocks at once fill a GPU, and those of one block do not.

Everything is in bf16 with sums in float32, as under autocast. Tiles have power-of-two sides, so a row of 192 features
is three tiles of 64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH, HIDDEN, HEADS, TOKENS = 192, 768, 3, 64
"""The sizes that the kernels are written for: features, hidden features, heads, and tokens of an image."""

# Chosen by measurement on an H200 (python -m benchmarks kernel_tiles): rows of a tile, columns at a time, warps, and
# stages of the loop that loads weights.
MLP_FORWARD = {"ROWS": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3}
MLP_BACKWARD = {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3}
NORM_BACKWARD = {"ROWS": 64, "CHUNK": 64, "num_warps": 4, "num_stages": 3}
ATTENTION_FORWARD = {"num_warps": 4, "num_stages": 1}
ATTENTION_BACKWARD = {"num_warps": 4, "num_stages": 1}


@triton.jit
def _load_row(start, rows, columns):
    """Load rows of 192 features as three tiles."""
    place = start + rows[:, None] * 192 + columns[None, :]
    one = tl.load(place)
    two = tl.load(place + 64)
    three = tl.load(place + 128)
    return one, two, three


@triton.jit
def _store_row(start, rows, columns, one, two, three):
    """Store three tiles as rows of 192 features."""
    place = start + rows[:, None] * 192 + columns[None, :]
    kind = start.dtype.element_ty
    tl.store(place, one.to(kind))
    tl.store(place + 64, two.to(kind))
    tl.store(place + 128, three.to(kind))


@triton.jit
def _get_moments(one, two, three):
    """Return the mean of each row, and one over its deviation."""
    one, two, three = one.to(tl.float32), two.to(tl.float32), three.to(tl.float32)
    mean = (tl.sum(one, 1) + tl.sum(two, 1) + tl.sum(three, 1)) / 192
    one, two, three = one - mean[:, None], two - mean[:, None], three - mean[:, None]
    variance = (tl.sum(one * one, 1) + tl.sum(two * two, 1) + tl.sum(three * three, 1)) / 192
    return mean, tl.rsqrt(variance + 1e-5)


@triton.jit
def _normalize(one, two, three, weight, bias, columns):
    """Apply LayerNorm to rows of three tiles."""
    kind = one.dtype
    mean, scale = _get_moments(one, two, three)
    one = (one.to(tl.float32) - mean[:, None]) * scale[:, None]
    two = (two.to(tl.float32) - mean[:, None]) * scale[:, None]
    three = (three.to(tl.float32) - mean[:, None]) * scale[:, None]
    one = one * tl.load(weight + columns)[None, :] + tl.load(bias + columns)[None, :]
    two = two * tl.load(weight + 64 + columns)[None, :] + tl.load(bias + 64 + columns)[None, :]
    three = three * tl.load(weight + 128 + columns)[None, :] + tl.load(bias + 128 + columns)[None, :]
    return one.to(kind), two.to(kind), three.to(kind)


@triton.jit
def _gate(x):
    """Return the normal distribution function, to 6e-5 of GELU, and its derivative.

    A logistic function of an odd polynomial takes a third of the instructions of erf, and keeps the relative accuracy
    of the lower tail. The coefficients are a minimax fit; rounding to bf16 errs a hundred times more.
    """
    square = tl.minimum(x * x, 25.0)
    # The polynomial is in units of -log2(e), for a power of two instead of an exponential.
    root = tl.rsqrt(1.0 + tl.exp2(x * (-2.3005481 + square * (-0.10726984 + 0.0010857001 * square))))
    value = root * root
    slope = (value - value * value) * (1.5946184 + square * (0.22306136 - 0.0037627526 * square))
    return value, slope


@triton.jit
def mlp_forward(
    x, norm_weight, norm_bias, w1, b1, w2, b2, out, hidden, ROWS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Write x + w2 gelu(hidden) + b2, and hidden, which is w1 norm(x) + b1."""
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_row(x, rows, columns)
    n1, n2, n3 = _normalize(x1, x2, x3, norm_weight, norm_bias, columns)
    y1 = tl.zeros((ROWS, 64), tl.float32)
    y2 = tl.zeros((ROWS, 64), tl.float32)
    y3 = tl.zeros((ROWS, 64), tl.float32)
    into = w1 + chunk[:, None] * 192 + columns[None, :]
    outof = w2 + columns[:, None] * 768 + chunk[None, :]
    place = hidden + rows[:, None] * 768 + chunk[None, :]
    for first in range(0, 768, CHUNK):
        h = tl.dot(n1, tl.trans(tl.load(into + first * 192)))
        h = tl.dot(n2, tl.trans(tl.load(into + first * 192 + 64)), h)
        h = tl.dot(n3, tl.trans(tl.load(into + first * 192 + 128)), h)
        h += tl.load(b1 + first + chunk)[None, :]
        tl.store(place + first, h.to(kind))
        value, slope = _gate(h)
        active = (h * value).to(kind)
        y1 = tl.dot(active, tl.trans(tl.load(outof + first)), y1)
        y2 = tl.dot(active, tl.trans(tl.load(outof + first + 64 * 768)), y2)
        y3 = tl.dot(active, tl.trans(tl.load(outof + first + 128 * 768)), y3)
    # Loaded again instead of held in registers through the loop.
    x1, x2, x3 = _load_row(x, rows, columns)
    y1 += tl.load(b2 + columns)[None, :] + x1.to(tl.float32)
    y2 += tl.load(b2 + 64 + columns)[None, :] + x2.to(tl.float32)
    y3 += tl.load(b2 + 128 + columns)[None, :] + x3.to(tl.float32)
    _store_row(out, rows, columns, y1, y2, y3)


@triton.jit
def mlp_backward(hidden, dy, w2, active, dhidden, sums, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write a tile of gelu(hidden), of the gradient of hidden, and the sums of this over every 16 rows."""
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, 64)
    kind = hidden.dtype.element_ty
    place = rows[:, None] * 768 + columns[None, :]
    h = tl.load(hidden + place)
    dactive = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, 192, 64):
        d = tl.load(dy + rows[:, None] * 192 + inner[None, :] + first)
        dactive = tl.dot(d, tl.load(w2 + (inner[:, None] + first) * 768 + columns[None, :]), dactive)
    h = h.to(tl.float32)
    value, slope = _gate(h)
    tl.store(active + place, (h * value).to(kind))
    dactive = dactive * (value + h * slope)
    tl.store(dhidden + place, dactive.to(kind))
    # Every 16 rows, which a warp holds, so that warps need not wait for each other.
    groups = tl.program_id(1) * (ROWS // 16) + tl.arange(0, ROWS // 16)
    sixteens = tl.reshape(dactive, (ROWS // 16, 16, COLUMNS))
    tl.store(sums + groups[:, None] * 768 + columns[None, :], tl.sum(sixteens, 1))


@triton.jit
def norm_backward(
    dz, weight, x, dy, norm_weight, norm_bias, dx, normed, sums,
    INNER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Take the gradient of a projection of norm(x) back to x, and add that of the way around it; write norm(x) too.

    ``sums`` has a row for each program: the sums over rows for LayerNorm's weight and bias, and those of dy.
    """
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    sums += tl.program_id(0) * 576
    dn1 = tl.zeros((ROWS, 64), tl.float32)
    dn2 = tl.zeros((ROWS, 64), tl.float32)
    dn3 = tl.zeros((ROWS, 64), tl.float32)
    into = weight + chunk[:, None] * 192 + columns[None, :]
    place = dz + rows[:, None] * INNER + chunk[None, :]
    for first in range(0, INNER, CHUNK):
        d = tl.load(place + first)
        dn1 = tl.dot(d, tl.load(into + first * 192), dn1)
        dn2 = tl.dot(d, tl.load(into + first * 192 + 64), dn2)
        dn3 = tl.dot(d, tl.load(into + first * 192 + 128), dn3)
    x1, x2, x3 = _load_row(x, rows, columns)
    mean, scale = _get_moments(x1, x2, x3)
    # Tile by tile, and loaded again every time: three tiles of float32 besides the gradient do not fit in registers.
    tile = rows[:, None] * 192 + columns[None, :]
    dn1, mean1, along1 = _scale_back(dn1, x + tile, mean, scale, norm_weight, norm_bias, normed + tile, sums, columns)
    dn2, mean2, along2 = _scale_back(
        dn2, x + tile + 64, mean, scale, norm_weight + 64, norm_bias + 64, normed + tile + 64, sums + 64, columns
    )
    dn3, mean3, along3 = _scale_back(
        dn3, x + tile + 128, mean, scale, norm_weight + 128, norm_bias + 128, normed + tile + 128, sums + 128, columns
    )
    dmean, along = (mean1 + mean2 + mean3) / 192, (along1 + along2 + along3) / 192
    _center_back(dn1, x + tile, mean, scale, dmean, along, dy + tile, dx + tile, sums + 384 + columns)
    _center_back(dn2, x + tile + 64, mean, scale, dmean, along, dy + tile + 64, dx + tile + 64, sums + 448 + columns)
    _center_back(dn3, x + tile + 128, mean, scale, dmean, along, dy + tile + 128, dx + tile + 128, sums + 512 + columns)


@triton.jit
def _scale_back(dn, x, mean, scale, weight, bias, normed, sums, columns):
    """Go back through LayerNorm's weight and bias; return the gradient and its means of two kinds."""
    standard = (tl.load(x).to(tl.float32) - mean[:, None]) * scale[:, None]
    weights = tl.load(weight + columns)[None, :]
    tl.store(normed, (standard * weights + tl.load(bias + columns)[None, :]).to(normed.dtype.element_ty))
    tl.store(sums + columns, tl.sum(dn * standard, 0))
    tl.store(sums + 192 + columns, tl.sum(dn, 0))
    dn = dn * weights
    return dn, tl.sum(dn, 1), tl.sum(dn * standard, 1)


@triton.jit
def _center_back(dn, x, mean, scale, dmean, along, dy, dx, sums):
    """Go back through the standardization, and add the gradient of the way around."""
    standard = (tl.load(x).to(tl.float32) - mean[:, None]) * scale[:, None]
    around = tl.load(dy).to(tl.float32)
    tl.store(sums, tl.sum(around, 0))
    dn = (dn - dmean[:, None] - standard * along[:, None]) * scale[:, None] + around
    tl.store(dx, dn.to(dx.dtype.element_ty))


@triton.jit
def _project(n1, n2, n3, weight, bias, columns):
    """Multiply rows of 192 features by 64 rows of a matrix, and add their biases."""
    place = weight + columns[:, None] * 192 + columns[None, :]
    out = tl.dot(n1, tl.trans(tl.load(place)))
    out = tl.dot(n2, tl.trans(tl.load(place + 64)), out)
    out = tl.dot(n3, tl.trans(tl.load(place + 128)), out)
    return (out + tl.load(bias + columns)[None, :]).to(weight.dtype.element_ty)


@triton.jit
def _attend(q, k):
    """Return the attention weights of a head."""
    scores = tl.dot(q, tl.trans(k)) * (0.125 * 1.44269504)
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def attention_forward(x, norm_weight, norm_bias, wqkv, bqkv, wout, bout, out, qkv):
    """Write x + wout attention(wqkv norm(x) + bqkv) + bout for one image, and its queries, keys and values."""
    columns = tl.arange(0, 64)
    rows = tl.program_id(0) * 64 + columns
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_row(x, rows, columns)
    n1, n2, n3 = _normalize(x1, x2, x3, norm_weight, norm_bias, columns)
    y1 = tl.zeros((64, 64), tl.float32)
    y2 = tl.zeros((64, 64), tl.float32)
    y3 = tl.zeros((64, 64), tl.float32)
    place = rows[:, None] * 576 + columns[None, :]
    outof = wout + columns[:, None] * 192 + columns[None, :]
    for head in range(3):
        first = head * 64
        q = _project(n1, n2, n3, wqkv + first * 192, bqkv + first, columns)
        k = _project(n1, n2, n3, wqkv + (192 + first) * 192, bqkv + 192 + first, columns)
        v = _project(n1, n2, n3, wqkv + (384 + first) * 192, bqkv + 384 + first, columns)
        tl.store(qkv + place + first, q)
        tl.store(qkv + place + 192 + first, k)
        tl.store(qkv + place + 384 + first, v)
        mixed = tl.dot(_attend(q, k).to(kind), v).to(kind)
        y1 = tl.dot(mixed, tl.trans(tl.load(outof + first)), y1)
        y2 = tl.dot(mixed, tl.trans(tl.load(outof + 64 * 192 + first)), y2)
        y3 = tl.dot(mixed, tl.trans(tl.load(outof + 128 * 192 + first)), y3)
    x1, x2, x3 = _load_row(x, rows, columns)
    y1 += tl.load(bout + columns)[None, :] + x1.to(tl.float32)
    y2 += tl.load(bout + 64 + columns)[None, :] + x2.to(tl.float32)
    y3 += tl.load(bout + 128 + columns)[None, :] + x3.to(tl.float32)
    _store_row(out, rows, columns, y1, y2, y3)


@triton.jit
def attention_backward(qkv, dy, wout, dqkv, attended, sums):
    """Write what one head of one image attends to, the gradients of its queries, keys and values, and their sums."""
    columns = tl.arange(0, 64)
    rows, first = tl.program_id(0) * 64 + columns, tl.program_id(1) * 64
    kind = qkv.dtype.element_ty
    place = rows[:, None] * 576 + columns[None, :] + first
    outof = wout + columns[:, None] * 192 + columns[None, :] + first
    dy1, dy2, dy3 = _load_row(dy, rows, columns)
    dattended = tl.dot(dy1, tl.load(outof))
    dattended = tl.dot(dy2, tl.load(outof + 64 * 192), dattended)
    dattended = tl.dot(dy3, tl.load(outof + 128 * 192), dattended).to(kind)
    q, k, v = tl.load(qkv + place), tl.load(qkv + place + 192), tl.load(qkv + place + 384)
    weights = _attend(q, k)
    rounded = weights.to(kind)
    tl.store(attended + rows[:, None] * 192 + columns[None, :] + first, tl.dot(rounded, v).to(kind))
    dv = tl.dot(tl.trans(rounded), dattended)
    dweights = tl.dot(dattended, tl.trans(v))
    dscores = (weights * (dweights - tl.sum(weights * dweights, 1)[:, None]) * 0.125).to(kind)
    dq = tl.dot(dscores, k)
    dk = tl.dot(tl.trans(dscores), q)
    sums += tl.program_id(0) * 576 + first + columns
    tl.store(sums, tl.sum(dq, 0))
    tl.store(sums + 192, tl.sum(dk, 0))
    tl.store(sums + 384, tl.sum(dv, 0))
    tl.store(dqkv + place, dq.to(kind))
    tl.store(dqkv + place + 192, dk.to(kind))
    tl.store(dqkv + place + 384, dv.to(kind))


def can_encode(x: Tensor, *, heads: int) -> bool:
    """Return whether the kernels compute blocks of so many heads on such tokens: in bf16, on a GPU, of their sizes."""
    sizes = x.dim() == 3 and x.shape[1:] == (TOKENS, WIDTH) and heads == HEADS
    return sizes and x.is_cuda and x.dtype == torch.bfloat16 and len(x) * TOKENS % _MOST_ROWS == 0


def encode(x: Tensor, blocks: list[list[Tensor]]) -> Tensor:
    """Run blocks of attention and MLP, given the parameters of each.

    These are the weight and the bias of a LayerNorm, of the projection to queries, keys and values, of that from what
    is attended, of the other LayerNorm, and of the two layers of the MLP: matrices in the dtype of x, vectors in
    float32. The result is differentiable once.
    """
    out: Tensor = _encode(x, [each for block in blocks for each in block])[0]
    return out


_PARAMETERS = 12  # of a block
_MOST_ROWS = 128  # of a tile


@torch.library.custom_op("effdeg_lab::encode", mutates_args=())
def _encode(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs, and what the gradients need: what is between halves, queries to values, hidden layers."""
    count, depth = x.numel() // WIDTH, len(parameters) // _PARAMETERS
    out, between = torch.empty_like(x), x.new_empty(2 * depth - 1, count, WIDTH)
    qkv, hidden = x.new_empty(depth, count, 3 * WIDTH), x.new_empty(depth, count, HIDDEN)
    stages = [x, *between, out]
    for block in range(depth):
        given = parameters[_PARAMETERS * block : _PARAMETERS * (block + 1)]
        before, middle, after = stages[2 * block : 2 * block + 3]
        attention_forward[(count // TOKENS,)](before, *given[:6], middle, qkv[block], **ATTENTION_FORWARD)
        rows = MLP_FORWARD["ROWS"]
        mlp_forward[(count // rows,)](middle, *given[6:], after, hidden[block], **MLP_FORWARD)
    return out, between, qkv, hidden


@torch.library.custom_op("effdeg_lab::encode_backward", mutates_args=())
def _encode_backward(
    x: Tensor, dy: Tensor, between: Tensor, qkv: Tensor, hidden: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x and of the four matrices of all blocks, and sums over some rows for the vectors."""
    count, depth = x.numel() // WIDTH, len(qkv)
    dx, stages, gradients = torch.empty_like(x), [x, *between], x.new_empty(2 * depth, count, WIDTH)
    gradients[-1].copy_(dy.view(count, WIDTH))
    # The gradient of what every half is given, and of the outputs; that of x is an output of its own.
    places = [dx, *gradients]
    normed, attended = x.new_empty(2 * depth, count, WIDTH), x.new_empty(depth, count, WIDTH)
    active, dhidden, dqkv = torch.empty_like(hidden), torch.empty_like(hidden), torch.empty_like(qkv)
    sums = torch.empty(2 * depth, count // NORM_BACKWARD["ROWS"], 3 * WIDTH, device=x.device)
    hidden_sums = torch.empty(depth, count // 16, HIDDEN, device=x.device)
    qkv_sums = torch.empty(depth, count // TOKENS, 3 * WIDTH, device=x.device)

    def take_back(half: int, dz: Tensor, weight: Tensor, norm_weight: Tensor, norm_bias: Tensor) -> None:
        norm_backward[(count // NORM_BACKWARD["ROWS"],)](
            dz, weight, stages[half], places[half + 1], norm_weight, norm_bias, places[half], normed[half], sums[half],
            INNER=dz.shape[1], **NORM_BACKWARD,
        )  # fmt: skip

    for block in reversed(range(depth)):
        norm1, bias1, wqkv, _, wout, _, norm2, bias2, w1, _, w2, _ = parameters[_PARAMETERS * block :][:_PARAMETERS]
        first, second = 2 * block, 2 * block + 1
        grid = (HIDDEN // MLP_BACKWARD["COLUMNS"], count // MLP_BACKWARD["ROWS"])
        mlp_backward[grid](
            hidden[block], places[second + 1], w2, active[block], dhidden[block], hidden_sums[block], **MLP_BACKWARD
        )
        take_back(second, dhidden[block], w1, norm2, bias2)
        attention_backward[(count // TOKENS, HEADS)](
            qkv[block], places[second], wout, dqkv[block], attended[block], qkv_sums[block], **ATTENTION_BACKWARD
        )
        take_back(first, dqkv[block], wqkv, norm1, bias1)
    dwqkv, dwout = dqkv.mT @ normed[::2], gradients[::2].mT @ attended
    dw1, dw2 = dhidden.mT @ normed[1::2], gradients[1::2].mT @ active
    return dx, dwqkv, dwout, dw1, dw2, sums, hidden_sums, qkv_sums


@_encode.register_fake
def _(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    count, depth = x.numel() // WIDTH, len(parameters) // _PARAMETERS
    shapes = ((2 * depth - 1, WIDTH), (depth, 3 * WIDTH), (depth, HIDDEN))
    return torch.empty_like(x), *(x.new_empty(many, count, width) for many, width in shapes)


@_encode_backward.register_fake
def _(x, dy, between, qkv, hidden, parameters):  # noqa: ARG001
    count, depth = x.numel() // WIDTH, len(qkv)
    matrices = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    sums = (
        (2 * depth, count // NORM_BACKWARD["ROWS"], 3 * WIDTH),
        (depth, count // 16, HIDDEN),
        (depth, count // TOKENS, 3 * WIDTH),
    )
    gradients = (x.new_empty(depth, *shape) for shape in matrices)
    return torch.empty_like(x), *gradients, *(torch.empty(shape, device=x.device) for shape in sums)


def _keep(ctx, inputs, output):
    x, parameters = inputs
    ctx.save_for_backward(x, *output[1:], *parameters)


def _differentiate(ctx, dy, *_):
    x, between, qkv, hidden, *parameters = ctx.saved_tensors
    dx, dwqkv, dwout, dw1, dw2, sums, hidden_sums, qkv_sums = _encode_backward(
        x, dy.contiguous(), between, qkv, hidden, parameters
    )
    sums, db1, dbqkv = sums.sum(1), hidden_sums.sum(1), qkv_sums.sum(1)
    norm_weight, norm_bias, after = sums.split(WIDTH, dim=1)
    by_block = (
        norm_weight[::2], norm_bias[::2], dwqkv, dbqkv, dwout, after[::2],
        norm_weight[1::2], norm_bias[1::2], dw1, db1, dw2, after[1::2],
    )  # fmt: skip
    return dx, [each for block in zip(*(every.unbind(0) for every in by_block), strict=True) for each in block]


_encode.register_autograd(_differentiate, setup_context=_keep)
