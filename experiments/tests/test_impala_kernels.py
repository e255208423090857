"""The kernels of IMPALA's convolutions against PyTorch's in float64, and an agent that uses them against one without.

On a GPU in bf16; elsewhere in float32 with TRITON_INTERPRET=1, where Triton is installed.
"""

import os

import pytest
import torch
from torch import nn

from effdeg_lab.models.impala import Agent

pytest.importorskip("triton", reason="needs Triton, which comes with torch for GPUs")
ON_GPU = torch.cuda.is_available()
if not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("needs a CUDA GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from effdeg_lab.models import impala_kernels

pytestmark = pytest.mark.filterwarnings("ignore")  # of which torch's compiler has many on a GPU
DEVICE = "cuda" if ON_GPU else "cpu"
TOLERANCE = 0.03 if ON_GPU else 1e-5


def make_agent():
    torch.manual_seed(0)
    agent = Agent((32, 24), actions=15).to(DEVICE)
    convolutions = [each for each in agent.modules() if isinstance(each, nn.Conv2d)]
    for each in convolutions:
        nn.init.normal_(each.bias, std=0.1)
    return agent, [each for one in convolutions for each in (one.weight, one.bias)]


def get_error(ours, exact):
    return float(((ours.double() - exact).norm() / exact.norm()).detach())


@pytest.mark.parametrize("compiled", [False, True])
def test_the_kernels_compute_the_convolutions_and_all_their_gradients(compiled):
    agent, parameters = make_agent()
    run = impala_kernels.see
    if compiled:
        run = torch.compile(run, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    frames = torch.randint(256, (64, 3, 32, 24), device=DEVICE) / 255
    assert impala_kernels.can_see(frames)
    out = run(frames, parameters)
    dy = torch.randn_like(out)
    ours = torch.autograd.grad(out, parameters, dy)
    exact = frames.double()
    for layer in list(agent.double().trunk)[:12]:
        exact = layer(exact)
    theirs = torch.autograd.grad(exact, parameters, dy.double())
    assert get_error(out, exact) < TOLERANCE
    errors = [get_error(one, other) for one, other in zip(ours, theirs, strict=True)]
    assert max(errors) < TOLERANCE, errors
    assert [each.dtype for each in ours] == [torch.float32] * len(parameters)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA GPU")
def test_a_fused_agent_is_the_agent():
    agent, _ = make_agent()
    frames = torch.rand(256, 3, 32, 24, device="cuda")

    def run(fused):
        agent.fuse(fused)
        agent.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits, values = agent(frames)
        (logits.square().mean() + values.square().mean()).backward()
        return logits, torch.cat([each.grad.flatten() for each in agent.parameters()])

    (logits, ours), (expected, theirs) = run(True), run(False)
    assert get_error(logits, expected.double()) < 0.03
    assert get_error(ours, theirs.double()) < 0.05


def test_other_counts_and_frames_that_need_gradients_run_without_kernels():
    frames = torch.rand(64, 3, 32, 24)
    assert not impala_kernels.can_see(frames[:63])
    assert not impala_kernels.can_see(frames[:, :, :, :20])
    assert not impala_kernels.can_see(frames.requires_grad_())
