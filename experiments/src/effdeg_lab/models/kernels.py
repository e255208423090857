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
MLP_BACKWARD = {"ROWS": 64, "CHUNK": 32, "SPLITS": 1, "num_warps": 4, "num_stages": 3}
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
    x, norm_weight, norm_bias, w1, b1, w2, b2, out, normed, ROWS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Write x + w2 gelu(w1 norm(x) + b1) + b2, and norm(x)."""
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_row(x, rows, columns)
    n1, n2, n3, scale = _standardize(x1, x2, x3)
    n1, n2, n3 = _scale_and_shift(n1, n2, n3, norm_weight, norm_bias, columns)
    n1, n2, n3 = n1.to(kind), n2.to(kind), n3.to(kind)
    _store_row(normed, rows, columns, n1, n2, n3)
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
    # Loaded again instead of held in registers through the loop.
    x1, x2, x3 = _load_row(x, rows, columns)
    y1 += tl.load(b2 + columns)[None, :] + x1.to(tl.float32)
    y2 += tl.load(b2 + 64 + columns)[None, :] + x2.to(tl.float32)
    y3 += tl.load(b2 + 128 + columns)[None, :] + x3.to(tl.float32)
    _store_row(out, rows, columns, y1, y2, y3)


@triton.jit
def mlp_backward(
    normed, dy, w1, b1, w2, active, dhidden, sums, ROWS: tl.constexpr, CHUNK: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Write the hidden layer after its nonlinearity, the gradient of what is before it, and its sums over rows."""
    rows, columns, chunk = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 64), tl.arange(0, CHUNK)
    kind = normed.dtype.element_ty
    # One row of sums for every 16 rows: what a warp holds, so that warps need not wait for each other.
    sums += (tl.program_id(0) * (ROWS // 16) + tl.arange(0, ROWS // 16))[:, None] * 768 + chunk[None, :]
    n1, n2, n3 = _load_row(normed, rows, columns)
    dy1, dy2, dy3 = _load_row(dy, rows, columns)
    into = w1 + chunk[:, None] * 192 + columns[None, :]
    outof = w2 + columns[:, None] * 768 + chunk[None, :]
    place = rows[:, None] * 768 + chunk[None, :]
    start = tl.program_id(1) * (768 // SPLITS)
    for step in range(0, 768 // SPLITS, CHUNK):
        first = start + step
        hidden = tl.dot(n1, tl.trans(tl.load(into + first * 192)))
        hidden = tl.dot(n2, tl.trans(tl.load(into + first * 192 + 64)), hidden)
        hidden = tl.dot(n3, tl.trans(tl.load(into + first * 192 + 128)), hidden)
        hidden += tl.load(b1 + first + chunk)[None, :]
        dactive = tl.dot(dy1, tl.load(outof + first))
        dactive = tl.dot(dy2, tl.load(outof + first + 64 * 768), dactive)
        dactive = tl.dot(dy3, tl.load(outof + first + 128 * 768), dactive)
        value, slope = _gate(hidden)
        tl.store(active + place + first, (hidden * value).to(kind))
        dh = dactive * (value + hidden * slope)
        tl.store(dhidden + place + first, dh.to(kind))
        tl.store(sums + first, tl.sum(tl.reshape(dh, (ROWS // 16, 16, CHUNK)), 1))


@triton.jit
def norm_backward(
    dz, weight, x, dy, norm_weight, dx, sums, INNER: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Take the gradient of a projection of norm(x) back to x, and add that of the way around it.

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
    x1, x2, x3, scale = _standardize(x1, x2, x3)
    _store_sums(sums, columns, dn1 * x1, dn2 * x2, dn3 * x3)
    _store_sums(sums + 192, columns, dn1, dn2, dn3)
    dn1 = dn1 * tl.load(norm_weight + columns)[None, :]
    dn2 = dn2 * tl.load(norm_weight + 64 + columns)[None, :]
    dn3 = dn3 * tl.load(norm_weight + 128 + columns)[None, :]
    mean = (tl.sum(dn1, 1) + tl.sum(dn2, 1) + tl.sum(dn3, 1)) / 192
    along = (tl.sum(dn1 * x1, 1) + tl.sum(dn2 * x2, 1) + tl.sum(dn3 * x3, 1)) / 192
    dn1 = (dn1 - mean[:, None] - x1 * along[:, None]) * scale[:, None]
    dn2 = (dn2 - mean[:, None] - x2 * along[:, None]) * scale[:, None]
    dn3 = (dn3 - mean[:, None] - x3 * along[:, None]) * scale[:, None]
    dy1, dy2, dy3 = _load_row(dy, rows, columns)
    dy1, dy2, dy3 = dy1.to(tl.float32), dy2.to(tl.float32), dy3.to(tl.float32)
    _store_sums(sums + 384, columns, dy1, dy2, dy3)
    _store_row(dx, rows, columns, dn1 + dy1, dn2 + dy2, dn3 + dy3)


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
def attention_forward(x, norm_weight, norm_bias, wqkv, bqkv, wout, bout, out, normed, qkv, attended):
    """Write x + wout attention(wqkv norm(x) + bqkv) + bout for one image, and what is needed of it backward."""
    columns = tl.arange(0, 64)
    rows = tl.program_id(0) * 64 + columns
    kind = x.dtype.element_ty
    x1, x2, x3 = _load_row(x, rows, columns)
    n1, n2, n3, scale = _standardize(x1, x2, x3)
    n1, n2, n3 = _scale_and_shift(n1, n2, n3, norm_weight, norm_bias, columns)
    n1, n2, n3 = n1.to(kind), n2.to(kind), n3.to(kind)
    _store_row(normed, rows, columns, n1, n2, n3)
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
        tl.store(attended + rows[:, None] * 192 + columns[None, :] + first, mixed)
        y1 = tl.dot(mixed, tl.trans(tl.load(outof + first)), y1)
        y2 = tl.dot(mixed, tl.trans(tl.load(outof + 64 * 192 + first)), y2)
        y3 = tl.dot(mixed, tl.trans(tl.load(outof + 128 * 192 + first)), y3)
    x1, x2, x3 = _load_row(x, rows, columns)
    y1 += tl.load(bout + columns)[None, :] + x1.to(tl.float32)
    y2 += tl.load(bout + 64 + columns)[None, :] + x2.to(tl.float32)
    y3 += tl.load(bout + 128 + columns)[None, :] + x3.to(tl.float32)
    _store_row(out, rows, columns, y1, y2, y3)


@triton.jit
def attention_backward(qkv, dy, wout, dqkv, sums):
    """Write the gradients of the queries, keys and values of one head of one image, and their sums over tokens."""
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
    dv = tl.dot(tl.trans(weights.to(kind)), dattended)
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
def _encode(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs, and what the gradients need: what is between halves, norms, queries to values, attended."""
    count, depth = x.numel() // WIDTH, len(parameters) // _PARAMETERS
    out, between = torch.empty_like(x), x.new_empty(2 * depth - 1, count, WIDTH)
    normed, qkv = x.new_empty(2 * depth, count, WIDTH), x.new_empty(depth, count, 3 * WIDTH)
    attended = x.new_empty(depth, count, WIDTH)
    stages = [x, *between, out]
    for block in range(depth):
        given = parameters[_PARAMETERS * block : _PARAMETERS * (block + 1)]
        before, middle, after = stages[2 * block : 2 * block + 3]
        attention_forward[(count // TOKENS,)](
            before, *given[:6], middle, normed[2 * block], qkv[block], attended[block], **ATTENTION_FORWARD
        )
        rows = MLP_FORWARD["ROWS"]
        mlp_forward[(count // rows,)](middle, *given[6:], after, normed[2 * block + 1], **MLP_FORWARD)
    return out, between, normed, qkv, attended


@torch.library.custom_op("effdeg_lab::encode_backward", mutates_args=())
def _encode_backward(
    x: Tensor, dy: Tensor, between: Tensor, normed: Tensor, qkv: Tensor, attended: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x and of the four matrices of all blocks, and sums over some rows for the vectors."""
    count, depth = x.numel() // WIDTH, len(qkv)
    stages, gradients = [x, *between], x.new_empty(2 * depth, count, WIDTH)
    dx = torch.empty_like(x)
    gradients[-1].copy_(dy.view(count, WIDTH))
    # gradients[stage] is that of what stage returns; that of x has a place of its own, since it is an output.
    places = [dx, *gradients]
    active, dhidden = x.new_empty(2, depth, count, HIDDEN)
    dqkv = torch.empty_like(qkv)
    norm_rows, mlp_rows = NORM_BACKWARD["ROWS"], MLP_BACKWARD["ROWS"]
    sums = torch.empty(2 * depth, count // norm_rows, 3 * WIDTH, device=x.device)
    hidden_sums = torch.empty(depth, count // 16, HIDDEN, device=x.device)
    qkv_sums = torch.empty(depth, count // TOKENS, 3 * WIDTH, device=x.device)
    for block in reversed(range(depth)):
        given = parameters[_PARAMETERS * block : _PARAMETERS * (block + 1)]
        first, second = 2 * block, 2 * block + 1
        mlp_backward[(count // mlp_rows, MLP_BACKWARD["SPLITS"])](
            normed[second], places[second + 1], *given[8:11], active[block], dhidden[block], hidden_sums[block],
            **MLP_BACKWARD,
        )  # fmt: skip
        norm_backward[(count // norm_rows,)](
            dhidden[block], given[8], stages[second], places[second + 1], given[6], places[second], sums[second],
            INNER=HIDDEN, **NORM_BACKWARD,
        )  # fmt: skip
        attention_backward[(count // TOKENS, HEADS)](
            qkv[block], places[second], given[4], dqkv[block], qkv_sums[block], **ATTENTION_BACKWARD
        )
        norm_backward[(count // norm_rows,)](
            dqkv[block], given[2], stages[first], places[second], given[0], places[first], sums[first],
            INNER=3 * WIDTH, **NORM_BACKWARD,
        )  # fmt: skip
    dwqkv, dwout = dqkv.mT @ normed[::2], gradients[::2].mT @ attended
    dw1, dw2 = dhidden.mT @ normed[1::2], gradients[1::2].mT @ active
    return dx, dwqkv, dwout, dw1, dw2, sums, hidden_sums, qkv_sums


@_encode.register_fake
def _(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    count, depth = x.numel() // WIDTH, len(parameters) // _PARAMETERS
    rows = (x.new_empty(many, count, width) for many, width in ((2 * depth - 1, 192), (2 * depth, 192), (depth, 576)))
    return torch.empty_like(x), *rows, x.new_empty(depth, count, WIDTH)


@_encode_backward.register_fake
def _(x, dy, between, normed, qkv, attended, parameters):  # noqa: ARG001
    count, depth = x.numel() // WIDTH, len(qkv)
    shapes = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    sums = (
        torch.empty(2 * depth, count // NORM_BACKWARD["ROWS"], 3 * WIDTH, device=x.device),
        torch.empty(depth, count // 16, HIDDEN, device=x.device),
        torch.empty(depth, count // TOKENS, 3 * WIDTH, device=x.device),
    )
    return torch.empty_like(x), *(x.new_empty(depth, *shape) for shape in shapes), *sums


def _keep(ctx, inputs, output):
    x, parameters = inputs
    ctx.save_for_backward(x, *output[1:], *parameters)


def _differentiate(ctx, dy, *_):
    x, between, normed, qkv, attended, *parameters = ctx.saved_tensors
    dx, dwqkv, dwout, dw1, dw2, sums, hidden_sums, qkv_sums = _encode_backward(
        x, dy.contiguous(), between, normed, qkv, attended, parameters
    )
    sums, db1, dbqkv = sums.sum(1), hidden_sums.sum(1), qkv_sums.sum(1)
    norm_weight, norm_bias, after = sums.split(WIDTH, dim=1)
    by_block = (
        norm_weight[::2], norm_bias[::2], dwqkv, dbqkv, dwout, after[::2],
        norm_weight[1::2], norm_bias[1::2], dw1, db1, dw2, after[1::2],
    )  # fmt: skip
    return dx, [each for block in zip(*(every.unbind(0) for every in by_block), strict=True) for each in block]


_encode.register_autograd(_differentiate, setup_context=_keep)
