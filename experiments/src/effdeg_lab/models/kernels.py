"""The two halves of a transformer block as one Triton kernel each, forward and backward, for ViT-Tiny's sizes.

At a width of 192, a block computed operation by operation is bound by memory: what each operation writes, the next one
reads. Here the hidden layer of the MLP, the attention weights and the normalized inputs never leave the chip on the way
forward. On the way back they are computed again, and what the gradients of the weights need is written once.

Everything is in bf16 with sums in float32, as under autocast. Tiles have power-of-two sides, so a row of 192 features
is three tiles of 64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH, HIDDEN, HEAD, TOKENS = 192, 768, 64, 64
"""The sizes that the kernels are written for: features, hidden features, features of a head, tokens of an image."""

# Chosen by measurement on an H200 (python -m benchmarks kernel_tiles): rows of a tile, hidden features at a time,
# warps, and stages of the loop that loads weights.
MLP_FORWARD = {"ROWS": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 2}
MLP_BACKWARD = {"ROWS": 128, "CHUNK": 64, "num_warps": 8, "num_stages": 2}
ATTENTION_FORWARD = {"num_warps": 4, "num_stages": 1}
ATTENTION_BACKWARD = {"num_warps": 4, "num_stages": 1}


@triton.jit
def _load_row(start, rows, columns, kept):
    """Load rows of 192 features as three tiles."""
    place = start + rows[:, None] * 192 + columns[None, :]
    one = tl.load(place, mask=kept, other=0.0)
    two = tl.load(place + 64, mask=kept, other=0.0)
    three = tl.load(place + 128, mask=kept, other=0.0)
    return one, two, three


@triton.jit
def _store_row(start, rows, columns, kept, one, two, three):
    """Store three tiles as rows of 192 features."""
    place = start + rows[:, None] * 192 + columns[None, :]
    kind = start.dtype.element_ty
    tl.store(place, one.to(kind), mask=kept)
    tl.store(place + 64, two.to(kind), mask=kept)
    tl.store(place + 128, three.to(kind), mask=kept)


@triton.jit
def _standardize(one, two, three):
    """Subtract the mean of each row and divide by its deviation; return also one over the deviation."""
    one, two, three = one.to(tl.float32), two.to(tl.float32), three.to(tl.float32)
    mean = (tl.sum(one, 1) + tl.sum(two, 1) + tl.sum(three, 1)) / 192
    one, two, three = one - mean[:, None], two - mean[:, None], three - mean[:, None]
    variance = (tl.sum(one * one, 1) + tl.sum(two * two, 1) + tl.sum(three * three, 1)) / 192
    scale = tl.rsqrt(variance + 1e-5)
    return one * scale[:, None], two * scale[:, None], three * scale[:, None], scale


@triton.jit
def _scale_and_shift(one, two, three, weight, bias, columns):
    """Apply LayerNorm's weight and bias."""
    one = one * tl.load(weight + columns)[None, :] + tl.load(bias + columns)[None, :]
    two = two * tl.load(weight + 64 + columns)[None, :] + tl.load(bias + 64 + columns)[None, :]
    three = three * tl.load(weight + 128 + columns)[None, :] + tl.load(bias + 128 + columns)[None, :]
    return one, two, three


@triton.jit
def _differentiate_norm(start, dn, x, scale, weight, columns):
    """Turn the gradient of a LayerNorm's output into that of its input; store the sums for its weight and bias."""
    # Nothing is unpacked by a loop: Triton's tuples hold tiles, not Python lists.
    dn1, dn2, dn3 = dn
    x1, x2, x3 = x
    _store_sums(start, columns, dn1 * x1, dn2 * x2, dn3 * x3)
    _store_sums(start + 192, columns, dn1, dn2, dn3)
    dn1 = dn1 * tl.load(weight + columns)[None, :]
    dn2 = dn2 * tl.load(weight + 64 + columns)[None, :]
    dn3 = dn3 * tl.load(weight + 128 + columns)[None, :]
    mean = (tl.sum(dn1, 1) + tl.sum(dn2, 1) + tl.sum(dn3, 1)) / 192
    along = (tl.sum(dn1 * x1, 1) + tl.sum(dn2 * x2, 1) + tl.sum(dn3 * x3, 1)) / 192
    dn1 = (dn1 - mean[:, None] - x1 * along[:, None]) * scale[:, None]
    dn2 = (dn2 - mean[:, None] - x2 * along[:, None]) * scale[:, None]
    dn3 = (dn3 - mean[:, None] - x3 * along[:, None]) * scale[:, None]
    return dn1, dn2, dn3


@triton.jit
def _store_sums(start, columns, one, two, three):
    """Store the sums over the rows of three tiles."""
    tl.store(start + columns, tl.sum(one.to(tl.float32), 0))
    tl.store(start + 64 + columns, tl.sum(two.to(tl.float32), 0))
    tl.store(start + 128 + columns, tl.sum(three.to(tl.float32), 0))


@triton.jit
def _gate(x):
    """Return the normal distribution function, to 6e-5 of GELU, and its derivative.

    A logistic function of an odd polynomial takes a third of the instructions of erf, and keeps the relative accuracy
    of the lower tail. The coefficients are a minimax fit; rounding to bf16 errs a hundred times more.
    """
    square = tl.minimum(x * x, 25.0)
    inner = x * (1.5946184 + square * (0.074353788 - 0.00075255051 * square))
    value = 1.0 / (1.0 + tl.exp2(-1.44269504 * inner))
    slope = value * (1.0 - value) * (1.5946184 + square * (0.223061365 - 0.00376275253 * square))
    return value, slope


@triton.jit
def mlp_forward(
    x, norm_weight, norm_bias, w1, b1, w2, b2, out, count, ROWS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Write x + w2 gelu(w1 norm(x) + b1) + b2."""
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    kept = (rows < count)[:, None]
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    n1, n2, n3, scale = _standardize(x1, x2, x3)
    n1, n2, n3 = _scale_and_shift(n1, n2, n3, norm_weight, norm_bias, columns)
    n1, n2, n3 = n1.to(kind), n2.to(kind), n3.to(kind)
    y1 = tl.zeros((ROWS, 64), tl.float32)
    y2 = tl.zeros((ROWS, 64), tl.float32)
    y3 = tl.zeros((ROWS, 64), tl.float32)
    into = w1 + chunk[:, None] * 192 + columns[None, :]
    outof = w2 + columns[:, None] * 768 + chunk[None, :]
    for first in range(0, 768, CHUNK):
        hidden = tl.dot(n1, tl.trans(tl.load(into + first * 192)))
        hidden = tl.dot(n2, tl.trans(tl.load(into + first * 192 + 64)), hidden)
        hidden = tl.dot(n3, tl.trans(tl.load(into + first * 192 + 128)), hidden)
        hidden += tl.load(b1 + first + chunk)[None, :]
        value, slope = _gate(hidden)
        active = (hidden * value).to(kind)
        y1 = tl.dot(active, tl.trans(tl.load(outof + first)), y1)
        y2 = tl.dot(active, tl.trans(tl.load(outof + first + 64 * 768)), y2)
        y3 = tl.dot(active, tl.trans(tl.load(outof + first + 128 * 768)), y3)
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    y1 += tl.load(b2 + columns)[None, :] + x1.to(tl.float32)
    y2 += tl.load(b2 + 64 + columns)[None, :] + x2.to(tl.float32)
    y3 += tl.load(b2 + 128 + columns)[None, :] + x3.to(tl.float32)
    _store_row(out, rows, columns, kept, y1, y2, y3)


@triton.jit
def mlp_backward(
    x, dy, norm_weight, norm_bias, w1, b1, w2, dx, normed, active, dhidden, sums, count,
    ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x, the sums for the vectors, and the tiles that the gradients of the matrices are made of.

    ``sums`` has a row for each program: LayerNorm's weight and bias, b2, b1.
    """
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    kept = (rows < count)[:, None]
    kind = x.dtype.element_ty
    sums += tl.program_id(0) * 1344
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    n1, n2, n3, scale = _standardize(x1, x2, x3)
    n1, n2, n3 = _scale_and_shift(n1, n2, n3, norm_weight, norm_bias, columns)
    n1, n2, n3 = n1.to(kind), n2.to(kind), n3.to(kind)
    _store_row(normed, rows, columns, kept, n1, n2, n3)
    dy1, dy2, dy3 = _load_row(dy, rows, columns, kept)
    _store_sums(sums + 384, columns, dy1, dy2, dy3)
    dn1 = tl.zeros((ROWS, 64), tl.float32)
    dn2 = tl.zeros((ROWS, 64), tl.float32)
    dn3 = tl.zeros((ROWS, 64), tl.float32)
    into = w1 + chunk[:, None] * 192 + columns[None, :]
    outof = w2 + columns[:, None] * 768 + chunk[None, :]
    place = rows[:, None] * 768 + chunk[None, :]
    for first in range(0, 768, CHUNK):
        into1, into2, into3 = (
            tl.load(into + first * 192),
            tl.load(into + first * 192 + 64),
            tl.load(into + first * 192 + 128),
        )
        hidden = tl.dot(n1, tl.trans(into1))
        hidden = tl.dot(n2, tl.trans(into2), hidden)
        hidden = tl.dot(n3, tl.trans(into3), hidden)
        hidden += tl.load(b1 + first + chunk)[None, :]
        dactive = tl.dot(dy1, tl.load(outof + first))
        dactive = tl.dot(dy2, tl.load(outof + first + 64 * 768), dactive)
        dactive = tl.dot(dy3, tl.load(outof + first + 128 * 768), dactive)
        value, slope = _gate(hidden)
        tl.store(active + place + first, (hidden * value).to(kind), mask=kept)
        dh = dactive * (value + hidden * slope)
        tl.store(sums + 576 + first + chunk, tl.sum(dh, 0))
        dh = dh.to(kind)
        tl.store(dhidden + place + first, dh, mask=kept)
        dn1 = tl.dot(dh, into1, dn1)
        dn2 = tl.dot(dh, into2, dn2)
        dn3 = tl.dot(dh, into3, dn3)
    # Loaded again instead of held in registers through the loop.
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    x1, x2, x3, scale = _standardize(x1, x2, x3)
    dn1, dn2, dn3 = _differentiate_norm(sums, (dn1, dn2, dn3), (x1, x2, x3), scale, norm_weight, columns)
    dy1, dy2, dy3 = _load_row(dy, rows, columns, kept)
    dn1, dn2, dn3 = dn1 + dy1.to(tl.float32), dn2 + dy2.to(tl.float32), dn3 + dy3.to(tl.float32)
    _store_row(dx, rows, columns, kept, dn1, dn2, dn3)


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
    rows = tl.program_id(0).to(tl.int64) * 64 + columns
    kept = (rows >= 0)[:, None]
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    n1, n2, n3, scale = _standardize(x1, x2, x3)
    n1, n2, n3 = _scale_and_shift(n1, n2, n3, norm_weight, norm_bias, columns)
    n1, n2, n3 = n1.to(kind), n2.to(kind), n3.to(kind)
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
        attended = tl.dot(_attend(q, k).to(kind), v).to(kind)
        y1 = tl.dot(attended, tl.trans(tl.load(outof + first)), y1)
        y2 = tl.dot(attended, tl.trans(tl.load(outof + 64 * 192 + first)), y2)
        y3 = tl.dot(attended, tl.trans(tl.load(outof + 128 * 192 + first)), y3)
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    y1 += tl.load(bout + columns)[None, :] + x1.to(tl.float32)
    y2 += tl.load(bout + 64 + columns)[None, :] + x2.to(tl.float32)
    y3 += tl.load(bout + 128 + columns)[None, :] + x3.to(tl.float32)
    _store_row(out, rows, columns, kept, y1, y2, y3)


@triton.jit
def _add_back(dn1, dn2, dn3, dout, weight, columns):
    """Add to the gradient of a projection's input what comes back through 64 rows of its matrix."""
    place = weight + columns[:, None] * 192 + columns[None, :]
    dn1 = tl.dot(dout, tl.load(place), dn1)
    dn2 = tl.dot(dout, tl.load(place + 64), dn2)
    dn3 = tl.dot(dout, tl.load(place + 128), dn3)
    return dn1, dn2, dn3


@triton.jit
def attention_backward(
    x, dy, qkv, norm_weight, norm_bias, wqkv, wout, dx, normed, dqkv, attended, sums
):  # fmt: skip
    """Write the gradient of x for one image, the sums for the vectors, and what the matrices' gradients are made of.

    ``sums`` has a row for each image: LayerNorm's weight and bias, bout, bqkv.
    """
    columns = tl.arange(0, 64)
    rows = tl.program_id(0).to(tl.int64) * 64 + columns
    kept = (rows >= 0)[:, None]
    kind = x.dtype.element_ty
    sums += tl.program_id(0) * 1152
    dy1, dy2, dy3 = _load_row(dy, rows, columns, kept)
    _store_sums(sums + 384, columns, dy1, dy2, dy3)
    dn1 = tl.zeros((64, 64), tl.float32)
    dn2 = tl.zeros((64, 64), tl.float32)
    dn3 = tl.zeros((64, 64), tl.float32)
    place = rows[:, None] * 576 + columns[None, :]
    outof = wout + columns[:, None] * 192 + columns[None, :]
    for head in range(3):
        first = head * 64
        q, k, v = tl.load(qkv + place + first), tl.load(qkv + place + 192 + first), tl.load(qkv + place + 384 + first)
        weights = _attend(q, k)
        rounded = weights.to(kind)
        tl.store(attended + rows[:, None] * 192 + columns[None, :] + first, tl.dot(rounded, v).to(kind))
        dy1, dy2, dy3 = _load_row(dy, rows, columns, kept)
        dattended = tl.dot(dy1, tl.load(outof + first))
        dattended = tl.dot(dy2, tl.load(outof + 64 * 192 + first), dattended)
        dattended = tl.dot(dy3, tl.load(outof + 128 * 192 + first), dattended).to(kind)
        dv = tl.dot(tl.trans(rounded), dattended)
        dweights = tl.dot(dattended, tl.trans(v))
        dscores = weights * (dweights - tl.sum(weights * dweights, 1)[:, None]) * 0.125
        dscores = dscores.to(kind)
        dq = tl.dot(dscores, k)
        dk = tl.dot(tl.trans(dscores), q)
        tl.store(sums + 576 + first + columns, tl.sum(dq, 0))
        tl.store(sums + 768 + first + columns, tl.sum(dk, 0))
        tl.store(sums + 960 + first + columns, tl.sum(dv, 0))
        dq, dk, dv = dq.to(kind), dk.to(kind), dv.to(kind)
        tl.store(dqkv + place + first, dq)
        tl.store(dqkv + place + 192 + first, dk)
        tl.store(dqkv + place + 384 + first, dv)
        dn1, dn2, dn3 = _add_back(dn1, dn2, dn3, dq, wqkv + first * 192, columns)
        dn1, dn2, dn3 = _add_back(dn1, dn2, dn3, dk, wqkv + (192 + first) * 192, columns)
        dn1, dn2, dn3 = _add_back(dn1, dn2, dn3, dv, wqkv + (384 + first) * 192, columns)
    x1, x2, x3 = _load_row(x, rows, columns, kept)
    x1, x2, x3, scale = _standardize(x1, x2, x3)
    n1, n2, n3 = _scale_and_shift(x1, x2, x3, norm_weight, norm_bias, columns)
    _store_row(normed, rows, columns, kept, n1, n2, n3)
    dn1, dn2, dn3 = _differentiate_norm(sums, (dn1, dn2, dn3), (x1, x2, x3), scale, norm_weight, columns)
    dy1, dy2, dy3 = _load_row(dy, rows, columns, kept)
    dn1, dn2, dn3 = dn1 + dy1.to(tl.float32), dn2 + dy2.to(tl.float32), dn3 + dy3.to(tl.float32)
    _store_row(dx, rows, columns, kept, dn1, dn2, dn3)


@torch.library.custom_op("effdeg_lab::mlp", mutates_args=())
def _mlp(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    out, count = torch.empty_like(x), x.numel() // WIDTH
    grid = (triton.cdiv(count, MLP_FORWARD["ROWS"]),)
    mlp_forward[grid](x, norm_weight, norm_bias, w1, b1, w2, b2, out, count, **MLP_FORWARD)
    return out


@torch.library.custom_op("effdeg_lab::mlp_backward", mutates_args=())
def _mlp_backward(
    x: Tensor, dy: Tensor, norm_weight: Tensor, norm_bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = x.numel() // WIDTH
    programs = triton.cdiv(count, MLP_BACKWARD["ROWS"])
    dx, normed = torch.empty_like(x), x.new_empty(count, WIDTH)
    active, dhidden = x.new_empty(count, HIDDEN), x.new_empty(count, HIDDEN)
    sums = norm_weight.new_empty(programs, 3 * WIDTH + HIDDEN)
    mlp_backward[(programs,)](
        x, dy, norm_weight, norm_bias, w1, b1, w2, dx, normed, active, dhidden, sums, count, **MLP_BACKWARD
    )
    return dx, dhidden.T @ normed, dy.view(count, WIDTH).T @ active, sums.sum(0)


@torch.library.custom_op("effdeg_lab::attention", mutates_args=())
def _attention(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, wqkv: Tensor, bqkv: Tensor, wout: Tensor, bout: Tensor
) -> tuple[Tensor, Tensor]:
    out, qkv = torch.empty_like(x), x.new_empty(*x.shape[:-1], 3 * WIDTH)
    attention_forward[(len(x),)](x, norm_weight, norm_bias, wqkv, bqkv, wout, bout, out, qkv, **ATTENTION_FORWARD)
    return out, qkv


@torch.library.custom_op("effdeg_lab::attention_backward", mutates_args=())
def _attention_backward(
    x: Tensor, dy: Tensor, qkv: Tensor, norm_weight: Tensor, norm_bias: Tensor, wqkv: Tensor, wout: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = x.numel() // WIDTH
    dx, normed, attended = torch.empty_like(x), x.new_empty(count, WIDTH), x.new_empty(count, WIDTH)
    dqkv, sums = x.new_empty(count, 3 * WIDTH), norm_weight.new_empty(len(x), 6 * WIDTH)
    attention_backward[(len(x),)](
        x, dy, qkv, norm_weight, norm_bias, wqkv, wout, dx, normed, dqkv, attended, sums, **ATTENTION_BACKWARD
    )
    return dx, dqkv.T @ normed, dy.view(count, WIDTH).T @ attended, sums.sum(0)


def mlp_block(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> Tensor:
    """Return x + w2 gelu(w1 norm(x) + b1) + b2, with matrices in the dtype of x and vectors in float32."""
    out: Tensor = _mlp(x, norm_weight, norm_bias, w1, b1, w2, b2)
    return out


def attention_block(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, wqkv: Tensor, bqkv: Tensor, wout: Tensor, bout: Tensor
) -> Tensor:
    """Return x + wout attention(wqkv norm(x) + bqkv) + bout for images of 64 tokens, with 3 heads."""
    out: Tensor = _attention(x, norm_weight, norm_bias, wqkv, bqkv, wout, bout)[0]
    return out


@_mlp.register_fake
def _(x, norm_weight, norm_bias, w1, b1, w2, b2):
    return torch.empty_like(x)


@_mlp_backward.register_fake
def _(x, dy, norm_weight, norm_bias, w1, b1, w2):
    return torch.empty_like(x), torch.empty_like(w1), torch.empty_like(w2), norm_weight.new_empty(3 * WIDTH + HIDDEN)


@_attention.register_fake
def _(x, norm_weight, norm_bias, wqkv, bqkv, wout, bout):
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 3 * WIDTH)


@_attention_backward.register_fake
def _(x, dy, qkv, norm_weight, norm_bias, wqkv, wout):
    return torch.empty_like(x), torch.empty_like(wqkv), torch.empty_like(wout), norm_weight.new_empty(6 * WIDTH)


def _keep_for_mlp(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:-1])


def _differentiate_mlp(ctx, dy):
    x, norm_weight, norm_bias, w1, b1, w2 = ctx.saved_tensors
    dx, dw1, dw2, sums = _mlp_backward(x, dy.contiguous(), norm_weight, norm_bias, w1, b1, w2)
    dnorm_weight, dnorm_bias, db2, db1 = sums.split([WIDTH, WIDTH, WIDTH, HIDDEN])
    return dx, dnorm_weight, dnorm_bias, dw1, db1, dw2, db2


def _keep_for_attention(ctx, inputs, output):
    x, norm_weight, norm_bias, wqkv, _, wout, _ = inputs
    ctx.save_for_backward(x, output[1], norm_weight, norm_bias, wqkv, wout)


def _differentiate_attention(ctx, dy, _):
    x, qkv, norm_weight, norm_bias, wqkv, wout = ctx.saved_tensors
    dx, dwqkv, dwout, sums = _attention_backward(x, dy.contiguous(), qkv, norm_weight, norm_bias, wqkv, wout)
    dnorm_weight, dnorm_bias, dbout, dbqkv = sums.split([WIDTH, WIDTH, WIDTH, 3 * WIDTH])
    return dx, dnorm_weight, dnorm_bias, dwqkv, dbqkv, dwout, dbout


_mlp.register_autograd(_differentiate_mlp, setup_context=_keep_for_mlp)
_attention.register_autograd(_differentiate_attention, setup_context=_keep_for_attention)
