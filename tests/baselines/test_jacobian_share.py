"""The Jacobian of a share of the batch: that of its first examples, and nothing else changes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from effdeg.baselines import JacobianPenalty
from tests.baselines.test_jacobian import jacobian_norm
from tests.batches import X, Y, tokens
from tests.models import Tokens, mlp, with_batchnorm


def gradients(value, model):
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    # The last bias has none.
    return [
        torch.zeros_like(each) if part is None else part for each, part in zip(model.parameters(), found, strict=True)
    ]


@pytest.mark.parametrize(("share", "taken"), [(0.25, 3), (0.01, 1), (0.99, 12)])
def test_a_share_is_the_first_examples_alone(share, taken):
    model = mlp().double()
    outputs, value = JacobianPenalty(-1, share=share)(model, X, Y)
    expected = jacobian_norm(model, X[:taken])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients(value, model), gradients(expected, model))
    assert torch.equal(outputs, model(X))
    torch.testing.assert_close(
        gradients(cross_entropy(outputs, Y), model), gradients(cross_entropy(model(X), Y), model)
    )


def seeded():
    return torch.Generator().manual_seed(0)


def test_a_share_at_a_layer():
    model = mlp().double()
    outputs, value = JacobianPenalty(-1, share=0.25, at="1")(model, X)
    torch.testing.assert_close(value, jacobian_norm(model[2], model[:2](X[:3])))
    assert torch.equal(outputs, model(X))
    tokens_model, inputs = Tokens().double(), tokens(8)
    outputs, value = JacobianPenalty(-1, share=0.25, at="embed")(tokens_model, inputs)
    first = {name: each[:2] for name, each in inputs.items()}
    torch.testing.assert_close(value, JacobianPenalty(-1, at="embed")(tokens_model, first)[1])
    assert torch.equal(outputs["logits"], tokens_model(**inputs)["logits"])


@pytest.mark.parametrize("at", [None, "1"])
def test_a_model_that_works_in_place_sees_the_batch_as_it_came(at):
    model = nn.Sequential(nn.ELU(inplace=True), nn.Linear(6, 4)).double()
    outputs, value = JacobianPenalty(-1, share=0.25, at=at)(model, X.clone())
    torch.testing.assert_close(outputs, model(X.clone()))
    expected = (
        jacobian_norm(lambda x: model[1](nn.functional.elu(x)), X[:3]) if at is None else torch.tensor(4 / 2).double()
    )
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("call", ["module", "method"])
def test_batchnorm_counts_the_whole_batch_and_once(call):
    model, other = with_batchnorm(), with_batchnorm()
    buffers = dict(model.named_buffers())
    penalty = JacobianPenalty(-1, share=0.5, generator=seeded())
    outputs, value = penalty(model if call == "module" else model.forward, X)
    assert torch.equal(outputs, other(X))
    assert model[1].num_batches_tracked == 1
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert torch.equal(buffer, other.get_buffer(name))
    # Examples that are normalized together depend on each other, which counts too, each with a sign of its own.
    signs = torch.where(torch.randn(6, 4, generator=seeded()) < 0, -1.0, 1.0)
    jacobian = torch.autograd.functional.jacobian(lambda x: (signs * other(x)).sum(0), X[:6], create_graph=True)
    expected = jacobian.square().sum() / 12
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        gradients(outputs.square().sum() + value, model), gradients(other(X).square().sum() + expected, other)
    )


def test_buffers_come_back_after_an_error():
    model = with_batchnorm()
    buffers = dict(model.named_buffers())
    with pytest.raises(RuntimeError):
        JacobianPenalty(share=0.5)(model, X[:, :5])
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert model[1].num_batches_tracked == 0


def test_the_whole_batch_is_run_compiled():
    model, compilations, runs = with_batchnorm(), 0, []

    def backend(graph, _):
        nonlocal compilations
        compilations += 1

        def run(*arguments):
            runs.append(
                max(
                    len(each)
                    for each in arguments
                    if isinstance(each, torch.Tensor) and each.dim() == 2 and each.shape[1] == 6
                )
            )
            return graph(*arguments)

        return run

    compiled = torch.compile(model, backend=backend)
    other = with_batchnorm()
    for _ in range(3):
        # Under BatchNorm in training the exact value is drawn, too.
        outputs, value = JacobianPenalty(-1, share=0.5, generator=seeded())(compiled, X)
        expected = JacobianPenalty(-1, share=0.5, generator=seeded())(other, X)
        torch.testing.assert_close((outputs, value), expected)
        torch.testing.assert_close(
            gradients(outputs.sum() + value, model), gradients(expected[0].sum() + expected[1], other)
        )
    assert runs == [12, 12, 12]
    assert compilations == 1


# torch's compiler warns so where it goes on behind a break, of what it does itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_share_in_a_compiled_step():
    model, penalty = mlp().double(), JacobianPenalty(-1, share=0.25)

    @torch.compile(backend="aot_eager")
    def step(x, y):
        outputs, value = penalty(model, x, y)
        return cross_entropy(outputs, y) + value

    for rows in (12, 8, 7):
        x, y = X[:rows], Y[:rows]
        expected = cross_entropy(model(x), y) + jacobian_norm(model, x[: round(rows / 4)])
        loss = step(x, y)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients(loss, model), gradients(expected, model))


@pytest.mark.usefixtures("process_group")
def test_a_share_in_parallel():
    model, other = with_batchnorm(), with_batchnorm()
    parallel, penalty, rows = DistributedDataParallel(model), JacobianPenalty(-1, share=0.5), []
    parallel.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    for _ in range(2):
        for each in (parallel, other):
            each.zero_grad()
            torch.manual_seed(0)
            outputs, value = penalty(each, X, Y)
            (cross_entropy(outputs, Y) + value).backward()
        torch.testing.assert_close(
            [parameter.grad for parameter in model.parameters()],
            [parameter.grad for parameter in other.parameters()],
        )
    assert model[1].num_batches_tracked == 2
    # Not through DDP, which with a static graph would then average wrong gradients: only the whole batch is.
    assert rows == [12, 12]


def test_a_share_reads_no_values():
    """Shapes alone decide what is done, as a CUDA graph needs it: it runs where there are no values at all."""
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), torch.empty(12, 6)
    outputs, value = JacobianPenalty(share=0.5)(model, x)
    assert outputs.shape == (12, 4)
    (outputs.sum() + value).backward()
    assert all(parameter.grad.is_meta for parameter in model.parameters())
