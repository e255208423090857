"""The blocks of ViT-Tiny on 64 tokens, computed by six Triton kernels and a few large matrix products.

At a width of 192, a block computed operation by operation is memory-bound: each operation reads what the previous one
wrote. Here each kernel does as much as possible with what it has read. The gradients of the matrices are computed after
all blocks: a product batched over the blocks fills a GPU, and that of one block does not.

Everything is in bf16 with sums in float32, as under autocast. Tiles have power-of-two sides, so a row of 192 features
is three tiles of 64, or one of 128 and one of 64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH, HIDDEN, HEADS, TOKENS = 192, 768, 3, 64
"""The sizes that the kernels are written for: features, hidden features, heads, and tokens of an image."""

# The tiles of the MLP need 213 KB of a multiprocessor's shared memory, which only Hopper (9.0) and Blackwell's large
# chips (10.0) have.
ON_LARGE_CHIP = torch.cuda.is_available() and torch.cuda.get_device_capability() in {(9, 0), (10, 0)}

# Tuned on an H200: rows and columns of a tile or of a chunk of it, warps, and
# stages of the loop that loads weights.
NORM_FORWARD = {"ROWS": 8, "num_warps": 4}
ATTENTION_FORWARD = {"num_warps": 4, "num_stages": 2}
MLP_FORWARD = {"ROWS": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 3}
MLP_BACKWARD = {"ROWS": 128, "COLUMNS": 64, "num_warps": 8, "num_stages": 3}
NORM_BACKWARD = {"ROWS": 64, "CHUNK": 8, "num_warps": 4}
ATTENTION_BACKWARD = {"num_warps": 4, "num_stages": 1}


@triton.jit
def _load_rows(x, rows):
    """Load rows of 192 features as three tiles."""
    place = x + rows[:, None] * 192 + tl.arange(0, 64)[None, :]
    return tl.load(place), tl.load(place + 64), tl.load(place + 128)


@triton.jit
def _standardize(x1, x2, x3):
    """Subtract the mean of each row and divide by its standard deviation; also return its reciprocal."""
    x1, x2, x3 = x1.to(tl.float32), x2.to(tl.float32), x3.to(tl.float32)
    mean = tl.sum(x1 + x2 + x3, 1)[:, None] * (1 / 192)
    x1, x2, x3 = x1 - mean, x2 - mean, x3 - mean
    scale = tl.rsqrt(tl.sum(x1 * x1 + x2 * x2 + x3 * x3, 1)[:, None] * (1 / 192) + 1e-5)
    return x1 * scale, x2 * scale, x3 * scale, scale


@triton.jit
def _normalize(x, rows, weight, bias, normed):
    """Load rows and apply LayerNorm to them; write and return the result."""
    columns = tl.arange(0, 64)
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_rows(x, rows)
    x1, x2, x3, scale = _standardize(x1, x2, x3)
    x1 = x1 * tl.load(weight + columns)[None, :] + tl.load(bias + columns)[None, :]
    x2 = x2 * tl.load(weight + 64 + columns)[None, :] + tl.load(bias + 64 + columns)[None, :]
    x3 = x3 * tl.load(weight + 128 + columns)[None, :] + tl.load(bias + 128 + columns)[None, :]
    x1, x2, x3 = x1.to(kind), x2.to(kind), x3.to(kind)
    place = normed + rows[:, None] * 192 + columns[None, :]
    tl.store(place, x1)
    tl.store(place + 64, x2)
    tl.store(place + 128, x3)
    return x1, x2, x3


@triton.jit
def _add_and_store(y, bias, x, out, place, columns):
    """Add a bias and the residual input x, and write the tile."""
    y += tl.load(bias + columns)[None, :] + tl.load(x + place).to(tl.float32)
    tl.store(out + place, y.to(out.dtype.element_ty))


@triton.jit
def _gate(x):
    """Approximate the normal distribution function, so that GELU is within 6e-5, and its derivative.

    A logistic function of an odd polynomial takes a third of the instructions of erf, and is accurate in relative terms
    in the lower tail. Its coefficients were fitted; rounding to bf16 makes errors a hundred times as large.
    """
    square = tl.minimum(x * x, 25.0)
    # The factor -log2(e) is in the coefficients, to use exp2 instead of exp.
    root = tl.rsqrt(1.0 + tl.exp2(x * (-2.3005481 + square * (-0.10726984 + 0.0010857001 * square))))
    value = root * root
    slope = (value - value * value) * (1.5946184 + square * (0.22306136 - 0.0037627526 * square))
    return value, slope


@triton.jit
def mlp_forward(
    x, norm_weight, norm_bias, w1, b1, w2, b2, out, normed, hidden, ROWS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Write x + w2 gelu(hidden) + b2, norm(x), and hidden, which is w1 norm(x) + b1."""
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    kind = x.dtype.element_ty
    n1, n2, n3 = _normalize(x, rows, norm_weight, norm_bias, normed)
    y1 = tl.zeros((ROWS, 64), tl.float32)
    y2, y3 = y1, y1
    into = w1 + chunk[:, None] * 192 + columns[None, :]
    outof = w2 + columns[:, None] * 768 + chunk[None, :]
    for first in range(0, 768, CHUNK):
        h = tl.dot(n1, tl.trans(tl.load(into + first * 192)))
        h = tl.dot(n2, tl.trans(tl.load(into + first * 192 + 64)), h)
        h = tl.dot(n3, tl.trans(tl.load(into + first * 192 + 128)), h)
        h += tl.load(b1 + first + chunk)[None, :]
        tl.store(hidden + rows[:, None] * 768 + chunk[None, :] + first, h.to(kind))
        value, slope = _gate(h)
        active = (h * value).to(kind)
        y1 = tl.dot(active, tl.trans(tl.load(outof + first)), y1)
        y2 = tl.dot(active, tl.trans(tl.load(outof + first + 64 * 768)), y2)
        y3 = tl.dot(active, tl.trans(tl.load(outof + first + 128 * 768)), y3)
    place = rows[:, None] * 192 + columns[None, :]
    _add_and_store(y1, b2, x, out, place, columns)
    _add_and_store(y2, b2, x, out, place + 64, columns + 64)
    _add_and_store(y3, b2, x, out, place + 128, columns + 128)


@triton.jit
def mlp_backward(hidden, dy, w2, active, dhidden, sums, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write a tile of gelu(hidden) and of the gradient of hidden, and sums of the latter over every 16 rows."""
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
    # The addition gives h the layout of a product; otherwise the gate would be computed once per layout.
    h = h.to(tl.float32) + 0.0 * dactive
    value, slope = _gate(h)
    tl.store(active + place, (h * value).to(kind))
    dactive = dactive * (value + h * slope)
    tl.store(dhidden + place, dactive.to(kind))
    # A warp holds 16 rows, so that warps need not wait for each other.
    groups = tl.program_id(1) * (ROWS // 16) + tl.arange(0, ROWS // 16)
    sixteens = tl.reshape(dactive, (ROWS // 16, 16, COLUMNS))
    tl.store(sums + groups[:, None] * 768 + columns[None, :], tl.sum(sixteens, 1))


@triton.jit
def norm_forward(x, norm_weight, norm_bias, normed, ROWS: tl.constexpr):
    _normalize(x, tl.program_id(0) * ROWS + tl.arange(0, ROWS), norm_weight, norm_bias, normed)


@triton.jit
def norm_backward(dn, x, dy, norm_weight, dx, sums, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """Propagate the gradient dn of norm(x) back to x, and add that of the residual connection, dy.

    ``sums`` has a row for each program: sums over its rows for LayerNorm's weight and bias, and of dy.
    """
    columns = tl.arange(0, 64)
    w1 = tl.load(norm_weight + columns)[None, :]
    w2 = tl.load(norm_weight + 64 + columns)[None, :]
    w3 = tl.load(norm_weight + 128 + columns)[None, :]
    zero = tl.zeros((CHUNK, 64), tl.float32)
    weight1, weight2, weight3 = zero, zero, zero
    bias1, bias2, bias3 = zero, zero, zero
    after1, after2, after3 = zero, zero, zero
    for first in range(0, ROWS, CHUNK):
        rows = tl.program_id(0) * ROWS + first + tl.arange(0, CHUNK)
        x1, x2, x3 = _load_rows(x, rows)
        d1, d2, d3 = _load_rows(dn, rows)
        y1, y2, y3 = _load_rows(dy, rows)
        x1, x2, x3, scale = _standardize(x1, x2, x3)
        d1, d2, d3 = d1.to(tl.float32), d2.to(tl.float32), d3.to(tl.float32)
        y1, y2, y3 = y1.to(tl.float32), y2.to(tl.float32), y3.to(tl.float32)
        weight1, weight2, weight3 = weight1 + d1 * x1, weight2 + d2 * x2, weight3 + d3 * x3
        bias1, bias2, bias3 = bias1 + d1, bias2 + d2, bias3 + d3
        after1, after2, after3 = after1 + y1, after2 + y2, after3 + y3
        d1, d2, d3 = d1 * w1, d2 * w2, d3 * w3
        mean = tl.sum(d1 + d2 + d3, 1)[:, None] * (1 / 192)
        along = tl.sum(d1 * x1 + d2 * x2 + d3 * x3, 1)[:, None] * (1 / 192)
        place = dx + rows[:, None] * 192 + columns[None, :]
        kind = dx.dtype.element_ty
        tl.store(place, ((d1 - mean - x1 * along) * scale + y1).to(kind))
        tl.store(place + 64, ((d2 - mean - x2 * along) * scale + y2).to(kind))
        tl.store(place + 128, ((d3 - mean - x3 * along) * scale + y3).to(kind))
    sums += tl.program_id(0) * 576 + columns
    _store_sums(sums, weight1, weight2, weight3)
    _store_sums(sums + 192, bias1, bias2, bias3)
    _store_sums(sums + 384, after1, after2, after3)


@triton.jit
def _store_sums(place, one, two, three):
    """Write the sums over the rows of three tiles."""
    tl.store(place, tl.sum(one, 0))
    tl.store(place + 64, tl.sum(two, 0))
    tl.store(place + 128, tl.sum(three, 0))


@triton.jit
def _attend(q, k):
    """Return the attention weights of a head."""
    scores = tl.dot(q, tl.trans(k)) * (0.125 * 1.44269504)
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def attention_forward(qkv, x, wout, bout, out):
    """Write x + wout attention(qkv) + bout for one image."""
    columns, wide, narrow = tl.arange(0, 64), tl.arange(0, 128), 128 + tl.arange(0, 64)
    rows = tl.program_id(0) * 64 + columns
    kind = x.dtype.element_ty
    y1, y2 = tl.zeros((64, 128), tl.float32), tl.zeros((64, 64), tl.float32)
    place = qkv + rows[:, None] * 576 + columns[None, :]
    for first in range(0, 192, 64):
        weights = _attend(tl.load(place + first), tl.load(place + first + 192)).to(kind)
        attended = tl.dot(weights, tl.load(place + first + 384)).to(kind)
        outof = wout + first + columns[None, :]
        y1 = tl.dot(attended, tl.trans(tl.load(outof + wide[:, None] * 192)), y1)
        y2 = tl.dot(attended, tl.trans(tl.load(outof + narrow[:, None] * 192)), y2)
    _add_and_store(y1, bout, x, out, rows[:, None] * 192 + wide[None, :], wide)
    _add_and_store(y2, bout, x, out, rows[:, None] * 192 + narrow[None, :], narrow)


@triton.jit
def attention_backward(qkv, dy, wout, dqkv, attended, sums):
    """Write the attention output of one head of one image, the gradients of its queries, keys and values, and sums."""
    columns, wide, narrow = tl.arange(0, 64), tl.arange(0, 128), 128 + tl.arange(0, 64)
    rows, first = tl.program_id(0) * 64 + columns, tl.program_id(1) * 64
    kind = qkv.dtype.element_ty
    place = rows[:, None] * 576 + columns[None, :] + first
    row, outof = dy + rows[:, None] * 192, wout + first + columns[None, :]
    dattended = tl.dot(tl.load(row + wide[None, :]), tl.load(outof + wide[:, None] * 192))
    dattended = tl.dot(tl.load(row + narrow[None, :]), tl.load(outof + narrow[:, None] * 192), dattended).to(kind)
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
    """Return whether the kernels can compute blocks with this many heads on these tokens."""
    rows = len(x) * TOKENS
    fits = x.shape[1:] == (TOKENS, WIDTH) and heads == HEADS and rows % _MOST_ROWS == 0
    # Offsets are 32-bit integers.
    return ON_LARGE_CHIP and fits and rows * HIDDEN < 2**31 and x.is_cuda and x.dtype == torch.bfloat16


def encode(x: Tensor, blocks: list[list[Tensor]]) -> Tensor:
    """Run blocks of attention and MLP, given the parameters of each.

    These are the weights and biases of the first LayerNorm, the projection to queries, keys and values, the output
    projection, the second LayerNorm, and the two layers of the MLP: matrices in the dtype of x, vectors in float32. The
    result is differentiable once.
    """
    out: Tensor = _encode(x.contiguous(), [each for block in blocks for each in block])[0]
    return out


_PARAMETERS = 12  # of a block
_MOST_ROWS = 128  # of a tile


@torch.library.custom_op("effdeg_lab::encode", mutates_args=())
def _encode(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs, and for the backward pass: inputs of all halves but the first, norms, qkv, hidden layers."""
    count, depth = x.numel() // WIDTH, len(parameters) // _PARAMETERS
    out, between = torch.empty_like(x), x.new_empty(2 * depth - 1, count, WIDTH)
    normed = x.new_empty(2 * depth, count, WIDTH)
    qkv, hidden = x.new_empty(depth, count, 3 * WIDTH), x.new_empty(depth, count, HIDDEN)
    stages = [x, *between, out]
    qkv_biases = torch.stack(parameters[3::_PARAMETERS]).to(x.dtype)
    for block in range(depth):
        norm_weight, norm_bias, wqkv, _, wout, bout, *mlp = parameters[_PARAMETERS * block :][:_PARAMETERS]
        before, middle, after = stages[2 * block : 2 * block + 3]
        norm_forward[(count // NORM_FORWARD["ROWS"],)](
            before, norm_weight, norm_bias, normed[2 * block], **NORM_FORWARD
        )
        torch.addmm(qkv_biases[block], normed[2 * block], wqkv.T, out=qkv[block])
        attention_forward[(count // TOKENS,)](qkv[block], before, wout, bout, middle, **ATTENTION_FORWARD)
        mlp_forward[(count // MLP_FORWARD["ROWS"],)](
            middle, *mlp, after, normed[2 * block + 1], hidden[block], **MLP_FORWARD
        )
    return out, between, normed, qkv, hidden


@torch.library.custom_op("effdeg_lab::encode_backward", mutates_args=())
def _encode_backward(
    x: Tensor, dy: Tensor, between: Tensor, normed: Tensor, qkv: Tensor, hidden: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x and of the four matrices of all blocks, and partial sums for those of the vectors."""
    count, depth = x.numel() // WIDTH, len(qkv)
    dx, stages, gradients = torch.empty_like(x), [x, *between], torch.empty_like(normed)
    gradients[-1].copy_(dy.view(count, WIDTH))
    # The gradients of the inputs of every half, and of the outputs.
    places = [dx, *gradients]
    attended, dn = x.new_empty(depth, count, WIDTH), x.new_empty(count, WIDTH)
    active, dhidden, dqkv = torch.empty_like(hidden), torch.empty_like(hidden), torch.empty_like(qkv)
    rows = NORM_BACKWARD["ROWS"]
    sums = torch.empty(2 * depth, count // rows, 3 * WIDTH, device=x.device)
    hidden_sums = torch.empty(depth, count // 16, HIDDEN, device=x.device)
    qkv_sums = torch.empty(depth, count // TOKENS, 3 * WIDTH, device=x.device)

    def propagate(half: int, dz: Tensor, weight: Tensor, norm_weight: Tensor) -> None:
        torch.mm(dz, weight, out=dn)
        norm_backward[(count // rows,)](
            dn, stages[half], places[half + 1], norm_weight, places[half], sums[half], **NORM_BACKWARD
        )

    for block in reversed(range(depth)):
        norm1, _, wqkv, _, wout, _, norm2, _, w1, _, w2, _ = parameters[_PARAMETERS * block :][:_PARAMETERS]
        first, second = 2 * block, 2 * block + 1
        grid = (HIDDEN // MLP_BACKWARD["COLUMNS"], count // MLP_BACKWARD["ROWS"])
        mlp_backward[grid](
            hidden[block], places[second + 1], w2, active[block], dhidden[block], hidden_sums[block], **MLP_BACKWARD
        )
        propagate(second, dhidden[block], w1, norm2)
        attention_backward[(count // TOKENS, HEADS)](
            qkv[block], places[second], wout, dqkv[block], attended[block], qkv_sums[block], **ATTENTION_BACKWARD
        )
        propagate(first, dqkv[block], wqkv, norm1)
    dwqkv, dwout = dqkv.mT @ normed[::2], gradients[::2].mT @ attended
    dw1, dw2 = dhidden.mT @ normed[1::2], gradients[1::2].mT @ active
    return dx, dwqkv, dwout, dw1, dw2, sums, hidden_sums, qkv_sums


@_encode.register_fake
def _(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    count, depth = x.numel() // WIDTH, len(parameters) // _PARAMETERS
    shapes = ((2 * depth - 1, WIDTH), (2 * depth, WIDTH), (depth, 3 * WIDTH), (depth, HIDDEN))
    return torch.empty_like(x), *(x.new_empty(many, count, width) for many, width in shapes)


@_encode_backward.register_fake
def _(x, dy, between, normed, qkv, hidden, parameters):  # noqa: ARG001
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
    x, between, normed, qkv, hidden, *parameters = ctx.saved_tensors
    dx, dwqkv, dwout, dw1, dw2, sums, hidden_sums, qkv_sums = _encode_backward(
        x, dy.contiguous(), between, normed, qkv, hidden, parameters
    )
    sums, db1, dbqkv = sums.sum(1), hidden_sums.sum(1), qkv_sums.sum(1)
    norm_weight, norm_bias, after = sums.split(WIDTH, dim=1)
    by_block = (
        norm_weight[::2], norm_bias[::2], dwqkv, dbqkv, dwout, after[::2],
        norm_weight[1::2], norm_bias[1::2], dw1, db1, dw2, after[1::2],
    )  # fmt: skip
    return dx, [each for block in zip(*(every.unbind(0) for every in by_block), strict=True) for each in block]


_encode.register_autograd(_differentiate, setup_context=_keep)
