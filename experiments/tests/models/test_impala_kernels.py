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


def make_agent():
    torch.manual_seed(0)
    agent = Agent((24, 32), actions=15).to(DEVICE)
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
    frames = torch.randint(256, (64, 3, 24, 32), device=DEVICE) / 255
    assert impala_kernels.can_see(frames)
    out = run(frames, parameters)
    dy = torch.randn_like(out)

    def differentiate(x):
        return [x, *torch.autograd.grad(x, parameters, dy.to(x.dtype))]

    def convolve(x):
        for layer in list(agent.trunk)[:12]:
            x = layer(x)
        return x

    ours = differentiate(out)
    assert [each.dtype for each in ours[1:]] == [torch.float32] * len(parameters)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=ON_GPU):
        theirs = differentiate(convolve(frames))
    agent.double()
    exact = differentiate(convolve(frames.double()))
    # In bf16, some units and some places of largest pixels change, for PyTorch as for us.
    for one, other, true in zip(ours, theirs, exact, strict=True):
        assert get_error(one, true) < 2 * get_error(other, true) + (0.005 if ON_GPU else 1e-5)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA GPU")
def test_a_fused_agent_is_the_agent():
    agent, _ = make_agent()
    frames = torch.rand(256, 3, 24, 32, device="cuda")

    def run(x, *, fused):
        agent.fuse(fused)
        agent.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=x.dtype == torch.float32):
            hidden = agent.trunk(x)
            logits, values = agent.actor(hidden), agent.critic(hidden)
        (logits.square().mean() + values.square().mean()).backward()
        return logits, values, torch.cat([each.grad.flatten().double() for each in agent.parameters()])

    ours, theirs = run(frames, fused=True), run(frames, fused=False)
    agent.double()
    for one, other, true in zip(ours, theirs, run(frames.double(), fused=False), strict=True):
        assert get_error(one, true) < 2 * get_error(other, true) + 0.005


def test_other_counts_and_frames_that_need_gradients_run_without_kernels():
    frames = torch.rand(64, 3, 24, 32)
    assert not impala_kernels.can_see(frames[:63])
    assert not impala_kernels.can_see(frames[:, :, :, :24])
    assert not impala_kernels.can_see(frames.requires_grad_())
