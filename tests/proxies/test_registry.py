import json
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg import proxies
from effdeg.proxies._registry import PROXIES, Proxy
from tests.batches import X, Y
from tests.models import Counted, mlp

ROUTE = {"paths": 20, "nodes": 15, "degree": 5}
RADII = [name for name in proxies.names() if "sharpness@" in name and "average" not in name]


def counted():
    return Counted(mlp(activation=nn.ReLU).double())


def table_of(model=None, **settings):
    return proxies.evaluate(model or counted(), (X, Y), cross_entropy, **{**ROUTE, **settings})


def test_all_of_them():
    other = mlp(seed=1, activation=nn.ReLU).double()
    needed = {"reference": other, "others": [other], "labeled": (X, Y), "change": torch.neg}
    table = table_of(mlp(activation=nn.ReLU).double(), **needed)
    assert not table.skipped
    assert list(table) == proxies.names()
    assert all(math.isfinite(value) for value in table.row().values())


def test_directions():
    better = {name for name in proxies.names() if proxies.larger_is_better(name)}
    margins = {name for name in proxies.names() if "margin" in name}
    assert better == margins | {"confidence", "nuclear_norm", "mano", "energy", "thresholded_confidence"}
    assert proxies.larger_is_better("margin@33")
    with pytest.raises(ValueError, match="'margins' is not a known proxy"):
        proxies.larger_is_better("margins")


@pytest.mark.parametrize("name", ["sharpness@0.1", "margin@50", "parameter_norm", "total_variation", "mixup_margin"])
def test_a_name_means_the_function(name):
    model = counted()
    functions = {
        "sharpness@0.1": lambda: proxies.sharpness(model, (X, Y), cross_entropy, rho=0.1),
        "margin@50": lambda: proxies.margin(model, (X, Y), percentile=50),
        "parameter_norm": lambda: proxies.parameter_norm(model),
        "total_variation": lambda: proxies.total_variation(model, (X, Y), **ROUTE),
        "mixup_margin": lambda: proxies.mixup_margin(model, (X, Y)),
    }
    assert table_of(model, names=[name])[name] == functions[name]()


def test_a_number_of_ones_own_and_the_default():
    table = table_of(names=["sharpness@0.2", "sharpness", "sharpness@0.05", "margin@33"])
    assert table["sharpness"].value == table["sharpness@0.05"].value < table["sharpness@0.2"].value
    assert table["margin@33"].settings["percentile"] == 33


def test_radii_share_one_gradient_and_margins_its_outputs():
    model = counted()
    table_of(model, names=RADII)
    # Rows before the work begins: two for their labels, two together and each by itself, and a trial of independence.
    ahead = 6 + 3 * 8
    # One pass with gradient, then one for each of the eight radii.
    assert model.rows == ahead + len(X) * (1 + len(RADII))
    model.rows = 0
    table_of(model, names=[*RADII, "margin@10", "margin@50"])
    assert model.rows == ahead + len(X) * (1 + len(RADII))


def test_everything_along_paths_shares_the_paths():
    model = counted()
    names = ["effective_degree", "effective_degree_normalized", "decision_regions", "linear_regions", "total_variation"]
    names += ["activation_changes", "spectral_centroid"]
    proxies.evaluate(model, X, names=names, **ROUTE)
    assert model.rows == 20 * 15 + 3 * 8  # and a trial of whether rows are independent


def test_any_kind_of_data():
    model = mlp().double()
    pairs = TensorDataset(X, Y)
    kinds = [
        (X, Y),
        pairs,
        DataLoader(pairs, batch_size=5),
        iter([(X[:5], Y[:5]), (X[5:], Y[5:])]),
        list(zip(X, Y, strict=True)),
        {"input": X, "labels": Y},
    ]
    names = ["sharpness@0.05", "margin@10", "jacobian_norm"]
    tables = [proxies.evaluate(model, kind, cross_entropy, names=names).row() for kind in kinds]
    for table in tables[1:]:
        assert table == pytest.approx(tables[0], rel=1e-9)


def test_without_labels_what_needs_none_is_computed():
    table = proxies.evaluate(counted(), X, **ROUTE)
    assert {"effective_degree", "parameter_norm", "path_norm", "jacobian_norm", "linear_regions"} <= set(table)
    assert "labels" in table.skipped["margin@10"]
    assert "reference" in table.skipped["distance"]


def test_a_plain_function_has_what_needs_no_weights():
    table = proxies.evaluate(lambda x: x @ torch.ones(6, 4).double(), (X, Y), cross_entropy, **ROUTE)
    assert {"effective_degree", "jacobian_norm", "total_variation"} <= set(table)
    assert "weights of the model" in table.skipped["sharpness@0.05"]


def test_a_table_is_read_kept_and_ranked():
    table = table_of(names=["parameter_norm", "jacobian_norm"])
    assert "parameter_norm" in str(table)
    assert "±" in str(table["jacobian_norm"])
    assert table.row() == {name: table[name].value for name in table}
    kept = json.loads(json.dumps(table.to_dict()))
    assert kept["results"]["jacobian_norm"]["stderr"] == table["jacobian_norm"].stderr
    with pytest.raises(KeyError, match="Did you mean 'parameter_norm'"):
        table["parameter_norms"]


def test_one_that_fails_does_not_take_the_others_along():
    model = mlp(activation=nn.ReLU).double()
    nn.init.zeros_(model[2].weight)  # its product of spectral norms is zero
    table = table_of(model)
    assert "no margin" in table.skipped["spectral_margin@10"]
    assert {"effective_degree", "sharpness@0.05"} <= set(table)


def test_outputs_that_are_nan_are_told():
    calls = []

    def broken(x):
        calls.append(len(x))
        return torch.full((len(x), 4), torch.nan).double()

    with pytest.raises(ValueError, match="outputs are NaN"):
        proxies.evaluate(broken, X, **ROUTE)
    # All paths at most, and three times the few rows that show whether rows depend on each other.
    assert sum(calls) <= 20 * 15 + 3 * 8


def test_a_defect_is_not_skipped():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            if torch.is_grad_enabled():
                raise RuntimeError("a defect of the model")
            return self.inner(x)

    with pytest.raises(RuntimeError, match="a defect of the model"):
        table_of(Broken().double())


def test_outputs_that_are_no_logits_leave_what_needs_none():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    table = proxies.evaluate(model, (X, X[:, :1]), nn.functional.mse_loss, **ROUTE)
    assert {"effective_degree_normalized", "sharpness@0.05", "path_norm", "linear_regions", "hessian_trace"} <= {*table}
    assert {"effective_degree", "decision_regions", "total_variation", "margin@10", "mixup_margin", "entropy"} <= set(
        table.skipped
    )
    assert "single output" in table.skipped["effective_degree"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_of_a_torchscript_module_what_looks_into_it_is_skipped_and_the_rest_is_right():
    model = mlp(activation=nn.ReLU).double()
    own, scripted = table_of(model), table_of(torch.jit.trace(model, X))
    assert {"parameter_norm", "margin@10", "jacobian_norm", "effective_degree"} <= set(scripted)
    for name, result in scripted.items():
        assert result.value == pytest.approx(own[name].value), name
    for name in ("sharpness@0.05", "spectral_sum", "frobenius_product", "path_norm", "hessian_trace"):
        assert "TorchScript" in scripted.skipped[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sharpnes@0.05", "not a known proxy. Did you mean 'sharpness@0.05'"),
        ("parameter_norm@3", "not a known proxy. Did you mean 'parameter_norm'"),
        ("sharpness@big", "a number was expected after the @, as in sharpness@0.01"),
        ("sharpness@", "a number was expected after the @"),
        ("sharpness@-1", r"rho=-1.0 must be positive"),
        ("margin@200", "between 0 and 100"),
        (5, "strings such as .* were expected"),
    ],
)
def test_names_that_are_none(name, message):
    with pytest.raises((TypeError, ValueError), match=message):
        table_of(names=[name])


def test_another_proxy_is_one_entry(monkeypatch, tmp_path):
    """It is known to ``evaluate``, a pool and a ranking; a plain function of a model and data is enough."""

    def largest(model, data):
        return proxies.Result("largest", model(data[0]).max().item())

    monkeypatch.setitem(PROXIES, "largest", Proxy(largest, larger_is_better=True))
    assert proxies.names()[-1] == "largest"
    model = mlp().double()
    assert proxies.evaluate(model, (X, Y), names=["largest"]).row() == {"largest": model(X).max().item()}
    for seed in range(3):
        torch.save(mlp(seed=seed).double().state_dict(), tmp_path / f"{seed}.pt")
    rows = effdeg.measure_pool(model, [tmp_path], X, proxies=["largest"], **ROUTE)
    assert rows[0]["largest"] == pytest.approx(mlp(seed=0).double()(X).max().item())
    ranked = effdeg.pools.rank([row | {"gap": number} for number, row in enumerate(rows)], resamples=100)
    assert "-largest" in ranked.scores
    assert "-largest" not in ranked.pool.guessed
