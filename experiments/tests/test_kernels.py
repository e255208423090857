"""The kernels against the same formulas in float64, and a transformer that uses them against itself without them.

On a GPU in bf16; elsewhere in float32 with TRITON_INTERPRET=1, where Triton is installed.
"""

import os

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from effdeg_lab.models import ViT, make_model

pytest.importorskip("triton", reason="needs Triton, which comes with torch for GPUs")
ON_GPU = torch.cuda.is_available()
if not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("needs a CUDA GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from effdeg_lab.models import kernels

DEVICE, KIND = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
# The hidden layer goes through an approximation of GELU, which a gradient in float32 shows.
TOLERANCE = 0.01 if ON_GPU else 3e-4


def compute_mlp(x, norm_weight, norm_bias, w1, b1, w2, b2):
    return x + linear(gelu(linear(layer_norm(x, (192,), norm_weight, norm_bias), w1, b1)), w2, b2)


def compute_attention(x, norm_weight, norm_bias, wqkv, bqkv, wout, bout):
    images, tokens, width = x.shape
    qkv = linear(layer_norm(x, (192,), norm_weight, norm_bias), wqkv, bqkv)
    heads = qkv.view(images, tokens, 3, 3, 64).permute(2, 0, 3, 1, 4)
    attended = scaled_dot_product_attention(*heads).transpose(1, 2).reshape(images, tokens, width)
    return x + linear(attended, wout, bout)


BLOCKS = {
    "mlp": (kernels.mlp_block, compute_mlp, ((768, 192), (192, 768))),
    "attention": (kernels.attention_block, compute_attention, ((576, 192), (192, 192))),
}


def draw_arguments(images, tokens, shapes):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, scale, kind=torch.float32):
        return (scale * torch.randn(*shape, generator=generator)).to(kind)

    matrices = [(draw(*shape, scale=0.1, kind=KIND), draw(shape[0], scale=0.1)) for shape in shapes]
    x, dy = (draw(images, tokens, 192, scale=1.0, kind=KIND) for _ in range(2))
    given = [x, 1 + draw(192, scale=0.1), draw(192, scale=0.1), *(each for pair in matrices for each in pair)]
    return [each.to(DEVICE).requires_grad_() for each in given], dy.to(DEVICE)


def get_error(ours, exact):
    return float(((ours.double() - exact).norm() / exact.norm()).detach())


@pytest.mark.parametrize(("block", "images", "tokens"), [("mlp", 2, 64), ("mlp", 3, 65), ("attention", 3, 64)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_kernel_computes_its_formula_and_all_its_gradients(block, images, tokens, compiled):
    run, formula, shapes = BLOCKS[block]
    if compiled:
        run = torch.compile(run, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    given, dy = draw_arguments(images, tokens, shapes)
    out = run(*given)
    exact_given = [each.detach().double().requires_grad_() for each in given]
    exact = formula(*exact_given)
    assert get_error(out - given[0], exact - exact_given[0]) < TOLERANCE
    ours, theirs = torch.autograd.grad(out, given, dy), torch.autograd.grad(exact, exact_given, dy.double())
    errors = [get_error(one, other) for one, other in zip(ours, theirs, strict=True)]
    assert max(errors) < TOLERANCE, errors
    assert [each.dtype for each in ours] == [each.dtype for each in given]


@pytest.mark.skipif(ON_GPU, reason="in bf16 the error of rounding hides it")
def test_the_approximation_of_gelu_has_the_accuracy_that_it_claims():
    # The hidden layer is the normalized input, stretched to reach far into the tails.
    x = torch.linspace(-8, 8, 192 * 64).view(64, 192)
    w1, w2, zeros = torch.eye(768, 192), torch.eye(192, 768), torch.zeros(768)
    out = kernels.mlp_block(x, torch.full((192,), 4.0), zeros[:192], w1, zeros, w2, zeros[:192]) - x
    exact = gelu(4 * layer_norm(x.double(), (192,)))
    assert float((out - exact).abs().max()) < 6e-5


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA GPU")
@pytest.mark.parametrize("pool", ["token", "mean"])
def test_a_fused_transformer_is_the_transformer(pool):
    torch.manual_seed(0)
    model, images = ViT(pool=pool).cuda(), torch.randn(8, 3, 32, 32, device="cuda")
    labels = torch.arange(8, device="cuda")

    def run(fused):
        model.fuse(fused)
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        return float(loss), torch.cat([each.grad.flatten() for each in model.parameters()])

    (one, ours), (two, theirs) = run(True), run(False)
    assert one == pytest.approx(two, rel=0.01)
    assert get_error(ours, theirs.double()) < 0.05


def test_other_sizes_and_dtypes_run_without_kernels():
    model, images = ViT(width=64, depth=1, heads=2, pool="mean"), torch.randn(2, 3, 32, 32)
    before = model(images)
    model.fuse()
    assert not model.blocks[0].fused
    assert torch.equal(model(images), before)
    tiny = make_model("vit-tiny-mean", shape=(3, 32, 32), classes=10)
    before = tiny(images)
    tiny.fuse()
    assert torch.equal(tiny(images), before)
