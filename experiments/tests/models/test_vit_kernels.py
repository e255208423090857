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

from effdeg_lab.models import vit_kernels as kernels

if ON_GPU and not kernels.ON_LARGE_CHIP:
    pytest.skip("needs a GPU with room for the tiles", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of which torch's compiler has many on a GPU
DEVICE, KIND = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
# A gradient in float32 shows the approximation of GELU.
TOLERANCE = 0.02 if ON_GPU else 5e-4


def compute(x, blocks):
    for weight1, bias1, wqkv, bqkv, wout, bout, weight2, bias2, w1, b1, w2, b2 in blocks:
        images, tokens, width = x.shape
        qkv = linear(layer_norm(x, (192,), weight1, bias1), wqkv, bqkv)
        heads = qkv.view(images, tokens, 3, 3, 64).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*heads).transpose(1, 2).reshape(images, tokens, width)
        x = x + linear(attended, wout, bout)
        x = x + linear(gelu(linear(layer_norm(x, (192,), weight2, bias2), w1, b1)), w2, b2)
    return x


def draw_block(generator):
    def draw(*shape):
        kind = KIND if len(shape) == 2 else torch.float32
        return (0.1 * torch.randn(*shape, generator=generator)).to(DEVICE, kind)

    attention = [1 + draw(192), draw(192), draw(576, 192), draw(576), draw(192, 192), draw(192)]
    mlp = [1 + draw(192), draw(192), draw(768, 192), draw(768), draw(192, 768), draw(192)]
    return [each.requires_grad_() for each in (*attention, *mlp)]


def get_error(ours, exact):
    return float(((ours.double() - exact).norm() / exact.norm()).detach())


@pytest.mark.parametrize("compiled", [False, True])
def test_the_kernels_compute_the_formula_and_all_its_gradients(compiled):
    run = kernels.encode
    if compiled:
        run = torch.compile(run, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    generator = torch.Generator().manual_seed(0)
    blocks = [draw_block(generator) for _ in range(2)]
    x, dy = torch.randn(2, 4, 64, 192, generator=generator).to(DEVICE, KIND)
    given = [x.requires_grad_(), *(each for block in blocks for each in block)]
    exact_given = [each.detach().double().requires_grad_() for each in given]
    out, exact = run(x, blocks), compute(exact_given[0], [exact_given[1:13], exact_given[13:]])
    assert get_error(out - x, exact - exact_given[0]) < TOLERANCE
    ours, theirs = torch.autograd.grad(out, given, dy), torch.autograd.grad(exact, exact_given, dy.double())
    errors = [get_error(one, other) for one, other in zip(ours, theirs, strict=True)]
    assert max(errors) < TOLERANCE, errors
    assert [each.dtype for each in ours] == [each.dtype for each in given]


@pytest.mark.skipif(ON_GPU, reason="in bf16 the error of rounding hides it")
def test_the_approximation_of_gelu_has_the_accuracy_that_it_claims():
    # Without attention, and with a hidden layer that is the normalized input, stretched to reach into the tails.
    x = torch.linspace(-2, 2, 192).repeat(2, 64, 1)
    ones, zeros = torch.ones(192), torch.zeros(768)
    attention = [ones, zeros[:192], torch.zeros(576, 192), zeros[:576], torch.zeros(192, 192), zeros[:192]]
    mlp = [4 * ones, zeros[:192], torch.eye(768, 192), zeros, torch.eye(192, 768), zeros[:192]]
    out = kernels.encode(x, [[*attention, *mlp]]) - x
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
    assert torch.equal(model(images), before)
    tiny = make_model("vit-tiny-mean", shape=(3, 32, 32), classes=10)
    before = tiny(images)
    tiny.fuse()
    assert torch.equal(tiny(images), before)
