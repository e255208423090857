"""A model is left as it came: TorchScript, odd buffers, data that draw. tests/test_properties.py has the rest."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import effdeg
from effdeg import proxies
from effdeg._adapters.inference import sum_weights
from tests.models import mlp
from tests.properties import assert_left_as_it_came

FAST = {"paths": 20, "nodes": 10, "degree": 5}
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 4
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.register_buffer("times", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x):
        self.times += 1
        self.last = self.last + 1
        return self.layers(x)


def script(model):
    return torch.jit.script(model)


def trace(model):
    return torch.jit.trace(model.eval(), X, check_trace=False)


@pytest.mark.parametrize("compiled", [script, trace])
@pytest.mark.parametrize("where", [{}, {"dtype": torch.float64}], ids=["here", "float64"])
def test_torchscript_is_measured_and_comes_back_as_it_was(compiled, where):
    expected = effdeg.measure(Counting(), X, **where, **FAST)
    model = compiled(Counting())
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measured = effdeg.measure(model, X, **where, **FAST)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-4, atol=1e-6)
    assert measured.settings.dtype == expected.settings.dtype
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_a_frozen_module_has_neither_mode_nor_weights_to_move():
    frozen = torch.jit.freeze(script(mlp().eval()))
    expected = effdeg.measure(mlp(), X, **FAST)
    torch.testing.assert_close(effdeg.measure(frozen, X, **FAST).per_path, expected.per_path, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"dtype= cannot change a module from torch.jit.freeze"):
        effdeg.measure(frozen, X, dtype=torch.float64, **FAST)


@pytest.mark.parametrize("compiled", [script, trace])
def test_a_layer_of_torchscript_is_refused(compiled):
    with pytest.raises(ValueError, match=r"at='layers.0' is a TorchScript layer.*before torch.jit"):
        effdeg.measure(compiled(Counting()), X, at="layers.0", **FAST)


class Strange(nn.Module):
    """Buffers that a forward pass writes to, replaces, drops, adds or lets grow, and some that cannot be compared."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(2))
        self.view = self.calls[:1]
        self.register_buffer("replaced", torch.ones(2))
        self.register_buffer("dropped", torch.ones(3))
        self.register_buffer("none", None)
        self.register_buffer("grows", torch.zeros(1))
        self.register_buffer("nothing", torch.full((2,), torch.nan))
        self.register_buffer("sparse", torch.eye(6).to_sparse())
        self.register_buffer("meta", torch.zeros(2, device="meta"))

    def forward(self, x):
        self.calls += 1
        self.replaced = self.replaced * 2
        self.dropped, self.none = None, x.detach()
        self.grows.resize_(len(x))
        self.register_buffer("new", x.sum())
        return self.inner(x)


@pytest.mark.parametrize("run", [lambda model: effdeg.measure(model, X, **FAST), lambda m: proxies.margin(m, (X, Y))])
def test_strange_buffers(run):
    model = Strange()
    before, version = dict(model._buffers), model.nothing._version
    run(model)
    assert model._buffers.keys() == before.keys()
    assert all(model._buffers[name] is each for name, each in before.items())
    assert torch.equal(model.replaced, torch.ones(2))
    assert model.grows.shape == (1,)
    assert model.nothing._version == version  # not written to, since NaN has not changed
    # Views of a buffer see it restored.
    assert model.calls.tolist() == [0, 0] == [*model.view.tolist(), 0]
    model.calls += 1
    assert model.view.item() == 1


def run_in_threads(*calls, times):
    """Call each function several times, in several threads at once, and return the results, row by row."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(len(calls)) as threads:
            runs = [[threads.submit(call) for call in calls] for _ in range(times)]
            return [[run.result(timeout=300) for run in row] for row in runs]
    finally:
        sys.setswitchinterval(interval)


THREADED = {
    "measure": lambda model: effdeg.measure(model, X, **FAST).value,
    "at a layer": lambda model: effdeg.measure(model, X, at="layers.0", **FAST).value,
    "in float64": lambda model: effdeg.measure(model, X, dtype=torch.float64, **FAST).value,
    "within another": lambda model: effdeg.measure(nn.Sequential(model, nn.Identity()), X, **FAST).value,
    "a function": lambda model: effdeg.measure(lambda x: model.layers[0](x), X, at=model.layers[0], **FAST).value,
    "trace": lambda model: effdeg.trace(model, X, paths=20, nodes=10).outputs.sum(),
    "compare": lambda model: effdeg.compare({"one": model, "two": model}, X, **FAST).measurements["two"].value,
    "proxy": lambda model: proxies.average_sharpness(model, (X, Y % 3), nn.functional.cross_entropy, samples=2).value,
}


def test_several_threads_share_a_model():
    model = Counting()
    calls = [partial(call, model) for call in THREADED.values()]
    expected = [call() for call in calls]
    with assert_left_as_it_came(model):
        assert run_in_threads(*calls, times=3) == [expected] * 3


def test_two_models_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=60)

    class Meeting(nn.Module):
        def forward(self, x):
            meet.wait()
            return x

    torch.manual_seed(3)
    state = torch.get_rng_state()
    with ThreadPoolExecutor(2) as threads:
        values = list(threads.map(lambda _: effdeg.measure(Meeting(), X, **FAST).value, range(2)))
    assert values[0] == values[1] == effdeg.measure(nn.Identity(), X, **FAST).value
    assert torch.equal(torch.get_rng_state(), state)


class Drawing(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return X[index] + torch.randn(6), index % 4


def test_a_loader_that_draws_is_seeded_and_the_state_put_back():
    model, sampler = mlp(), WeightedRandomSampler(torch.ones(30), 30)
    loader = DataLoader(Drawing(), batch_size=10, sampler=sampler)
    with assert_left_as_it_came(model):
        values = [effdeg.measure(model, loader, **FAST).value for _ in range(2)]
        compared = effdeg.compare({"one": model, "two": model}, loader, **FAST)
    assert values[0] == values[1] == compared.measurements["one"].value
    assert values[0] != effdeg.measure(model, loader, seed=1, **FAST).value


class _Scaled(nn.Linear):
    def forward(self, x, scale=2.0):
        return super().forward(x) * scale


def test_a_program_of_one_batch_size_is_refused():
    x, model, size = torch.randn(20, 6), _Scaled(6, 4), 20
    static = torch.export.export(model, (x[:size],), {"scale": 3.0}).module()
    with pytest.raises(ValueError, match=rf"exported for batches of exactly {size} example.*dynamic_shapes=") as raised:
        effdeg.measure(static, x, paths=5)
    assert "Guard" not in str(raised.value)
    dynamic = torch.export.export(nn.Linear(6, 4), (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    assert effdeg.measure(dynamic, x, paths=5).value > 0


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: model.forward], ids=["module", "method"])
@pytest.mark.parametrize("measure", [effdeg.measure, effdeg.proxies.evaluate])
def test_lazy_layers_must_have_run(measure, wrap):
    model, x = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(affine=False)), torch.randn(6, 3)
    with pytest.raises(ValueError, match=r"lazy layers, whose weights are made when it first runs. Run it once"):
        measure(wrap(model), x)


@pytest.mark.parametrize(
    "model", [nn.Linear(3, 2, device="meta"), nn.LazyLinear(2), nn.Sequential(mlp(), nn.Linear(3, 2, device="meta"))]
)
def test_weights_that_are_not_here_are_not_compared_between_processes(model):
    assert sum_weights(model) is None
    assert sum_weights(mlp()) == sum_weights(mlp()) != sum_weights(mlp(seed=1))


class Writing(nn.Module):
    """Writes to what is not restored by itself."""

    def __init__(self, what):
        super().__init__()
        torch.manual_seed(0)
        self.what, self.embed, self.head = what, nn.Embedding(30, 6, max_norm=0.5), nn.Linear(6, 4)

    def forward(self, ids):
        hidden = self.embed(ids).mean(1)
        if self.what == "weights":
            with torch.no_grad():
                self.head.weight *= 0.9
        if self.what == "data":
            self.head.weight.data = 0.9 * self.head.weight.data
        if self.what == "gradients":
            with torch.enable_grad():
                self.head(hidden).sum().backward()
        return self.head(hidden)


def test_embeddings_that_are_scaled_down_and_gradients_of_forward_come_back_as_they_were():
    ids, model = torch.randint(30, (40, 5)), Writing("gradients")
    names = ["parameter_norm", "confidence"]
    with assert_left_as_it_came(model):
        effdeg.measure(model, ids, at="embed", **FAST)
        values = [proxies.evaluate(model, ids, names=part)["parameter_norm"].value for part in (names, names[::-1])]
    assert values[0] == values[1] == proxies.parameter_norm(model).value
    assert model.head.weight.grad is None
    model.head.weight.grad = torch.ones_like(model.head.weight)
    effdeg.measure(model, ids, at="embed", **FAST)
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))


@pytest.mark.filterwarnings("ignore:the model .* returns different outputs for the same point")
@pytest.mark.parametrize("what", ["weights", "data"])
def test_weights_that_forward_writes_to_are_named(what):
    ids = torch.randint(30, (40, 5))
    with pytest.warns(UserWarning, match=r"\(Writing\) writes to its weights when it runs.* head.weight is not what"):
        effdeg.measure(Writing(what), ids, at="embed", **FAST)


class DrawingItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        torch.rand(3)
        return self.net(x)


def test_what_a_data_set_draws_does_not_depend_on_the_model_or_its_batches():
    values = {effdeg.measure(DrawingItself(), Drawing(), batch_size=size, **FAST).value for size in (None, 7, 50)}
    assert values == {effdeg.measure(mlp(), Drawing(), **FAST).value}
    choice = effdeg.pick({"a": mlp(), "b": DrawingItself()}, Drawing())
    assert choice.measures["a"]["disagreement"][0] == 0


def test_a_generator_of_a_sampler_follows_the_seed_and_that_of_a_data_set_is_noted():
    sampler = SubsetRandomSampler(range(20), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(X, Y), batch_size=10, sampler=sampler)
    assert len({effdeg.measure(mlp(), loader, **FAST).value for _ in range(2)}) == 1
    random = torch.Generator()

    class OwnDraws(Drawing):
        def __getitem__(self, index):
            return X[index] + torch.randn(6, generator=random), index % 4

    note = "the data set returns other examples whenever it is read"
    assert any(note in each for each in effdeg.measure(mlp(), OwnDraws(), **FAST).warnings())
    picked = effdeg.pick([mlp(), mlp()], OwnDraws())  # which reads examples once, for both
    assert picked.measures["Sequential 1"] == picked.measures["Sequential 2"]
    assert not any(note in each for each in effdeg.measure(mlp(), Drawing(), **FAST).warnings())


class InHalf(nn.Module):
    def __init__(self, enabled):
        super().__init__()
        self.net, self.enabled, self.scale = mlp(), enabled, nn.Parameter(torch.tensor(5.3))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            hidden = self.net(x)
        return hidden.float() * self.scale


class Merging(nn.Linear):
    """Merges weights in evaluation mode, as some layers of LoRA do."""

    def __init__(self):
        super().__init__(6, 4)
        self.more, self.merged = nn.Parameter(torch.randn(4, 6)), False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += self.more * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x):
        return super().forward(x) + (0 if self.merged else x @ self.more.T)


def test_a_layer_that_merges_weights_in_evaluation_is_taken_apart_again():
    model = nn.Sequential(Merging(), nn.Linear(4, 6), Merging().eval())
    with assert_left_as_it_came(model):
        effdeg.measure(model, X, **FAST)
    assert [(each.training, each.merged) for each in (model[0], model[2])] == [(True, False), (False, True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_precision_of_a_model_with_many_outputs_is_its_own(dtype):
    measured = effdeg.measure(nn.Linear(6, 100).to(dtype), X, **FAST)
    assert measured.settings.dtype == str(dtype).removeprefix("torch.")


def test_half_precision_inside_a_model_is_its_precision():
    measured = [effdeg.measure(InHalf(enabled), X, **FAST).settings.dtype for enabled in (True, False)]
    assert measured == ["bfloat16", "float32"]
    with pytest.raises(ValueError, match="differ in precision: bfloat16 and float32"):
        effdeg.compare([InHalf(True), InHalf(False)], X, **FAST)


def shared_layer(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 6), layer, nn.Linear(6, 4))


def tied_weights():
    model = shared_layer(nn.ReLU())
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize("make", [lambda: shared_layer(nn.PReLU()), tied_weights], ids=["layer", "weights"])
def test_what_has_two_names_comes_back_as_it_was(make):
    model = make()
    names = ["average_sharpness@0.3", "hessian_trace", "path_norm", "margin@10", "parameter_norm"]
    with assert_left_as_it_came(model):
        parameters = [*model.parameters()]
        table = proxies.evaluate(model, (X, Y), nn.functional.cross_entropy, names=names).row()
        lower = effdeg.measure(model, X, dtype=torch.float64, **FAST).value
        assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
        assert all(isinstance(each, nn.Parameter) for each in model.parameters())
    assert table["margin@10"] == proxies.margin(make(), (X, Y)).value
    assert lower == effdeg.measure(make().double(), X.double(), **FAST).value
