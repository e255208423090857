"""Under torch.compile: what is only tensors is traced, what hooks layers or differentiates twice breaks the graph."""

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from effdeg.baselines import ICT, R3F, FixMatch, JacobianPenalty, RDrop, RegMixup, cutmix, manifold_mixup, mixup
from tests.baselines.test_rdrop import with_dropout
from tests.batches import X, Y
from tests.models import mlp

MODEL, DROPPING = mlp().double(), with_dropout().double()
TEACHER = AveragedModel(mlp(seed=1).double(), multi_avg_fn=get_ema_multi_avg_fn(0.99))


def test_mixup_is_traced_as_a_whole():
    def mixed(x, y, alpha):
        return mixup(x, y, alpha=alpha, classes=4)

    compiled = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    for rows, alpha in ((12, 0.3), (7, 0.3)):
        results = []
        for function in (mixed, compiled):
            torch.manual_seed(rows)
            results.append(function({"x": X[:rows], "mask": X[:rows] > 0}, Y[:rows], alpha))
        torch.testing.assert_close(*results)


def cut(alpha):
    return lambda x, y: cutmix(x.view(-1, 1, 2, 3), y, alpha=alpha, classes=4)


def regularize(alpha):
    method = RegMixup(alpha, classes=4)
    return lambda x, y: method(MODEL, x, y)


def follow_the_teacher(alpha):
    method = ICT(TEACHER, alpha=alpha)
    return lambda x, y: method(MODEL, x[:5], unlabeled=x)


def compare_copies(_):
    method = FixMatch(lambda x: 0.5 - x.flip(-1), threshold=0.3)
    return lambda x, y: method(MODEL, x[:5], unlabeled=x)


def drop_twice(_):
    method = RDrop()
    return lambda x, y: method(DROPPING, x, y)


def add_noise(alpha):
    method = R3F(alpha)
    return lambda x, y: method(MODEL, x, y)


def is_gamma_traced():
    """Return whether torch can trace a varying number of draws; 2.6 traces any that is fixed."""
    try:
        return torch._standard_gamma(torch.ones(2, device="meta")).is_meta
    except NotImplementedError:
        return False


@pytest.mark.parametrize("make", [cut, regularize, follow_the_teacher, compare_copies, drop_twice, add_noise])
def test_relatives_of_mixup_are_traced_as_a_whole(make):
    dynamic = False if make is cut and not is_gamma_traced() else None
    function = make(0.3)
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="eager")
    for rows in (12, 7) if make is regularize else (12,):
        results = []
        for each in (function, compiled):
            torch.manual_seed(rows)
            results.append(each(X[:rows], Y[:rows]))
        torch.testing.assert_close(*results)


def mix_at_layers(model, x, y):
    return manifold_mixup(model, x, y, at=[None, "0", "1"], classes=4)


# torch's compiler warns of its own use of .grad where it continues after a break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("function", [mix_at_layers, R3F(0.3, at="1"), JacobianPenalty()])
def test_compiled_or_not_it_is_the_same(function):
    model = mlp().double()
    compiled_model = torch.compile(model, backend="eager")
    compiled_model(X)
    compiled = torch.compile(function, backend="aot_eager")
    results = []
    for each, net in ((function, model), (function, compiled_model), (compiled, model)):
        torch.manual_seed(0)
        model.zero_grad()
        outputs, value = each(net, X, Y)
        (outputs.sum() + value.sum()).backward()
        results.append((outputs.detach(), value.detach(), [p.grad.clone() for p in model.parameters()]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
