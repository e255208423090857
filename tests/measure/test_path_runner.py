import functools
import operator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from tests.models import mlp

X = torch.randn(20, 6)


class TestFingerprint:
    def fingerprint(self, inputs=X, model=None, **settings):
        return effdeg.measure(
            model or mlp(), inputs, **{"paths": 40, "nodes": 6, "degree": 3} | settings
        ).settings.fingerprint

    def test_it_is_the_same_for_any_model_and_way_to_run_it(self):
        expected = self.fingerprint()
        assert len(expected) == 16
        assert self.fingerprint(model=mlp(seed=3, outputs=7)) == expected
        assert self.fingerprint(model=mlp().to(torch.bfloat16)) == expected
        assert self.fingerprint(dtype=torch.float64) == expected
        assert self.fingerprint(batch_size=5) == expected
        assert self.fingerprint(at="0") == expected
        assert self.fingerprint(nodes=9, sampling="chebyshev") == expected
        assert self.fingerprint(TensorDataset(X, torch.arange(20))) == expected
        assert self.fingerprint(DataLoader(TensorDataset(X), batch_size=7)) == expected
        assert effdeg.trace(mlp(), X, paths=40, nodes=6).settings.fingerprint == expected

    @pytest.mark.parametrize(
        "other",
        [
            lambda: X * 1.000001,
            lambda: X.flip(0),
            lambda: X.double(),
            lambda: (X - X.mean()) / X.std(),
            lambda: torch.randn(20, 6, generator=torch.Generator().manual_seed(5)),
        ],
    )
    def test_other_data_have_another(self, other):
        model = mlp().double() if other().dtype == torch.float64 else mlp()
        assert self.fingerprint(other(), model) != self.fingerprint()

    def test_every_tensor_counts(self):
        def model(x, mask):
            return x * mask

        mask = torch.ones(20, 6, dtype=torch.bool)
        one, same, other = (self.fingerprint((X, each), model) for each in (mask, mask.clone(), mask & (X > 0)))
        assert one == same != other


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (mlp(), "Sequential"),
        (mlp().forward, "Sequential"),
        (torch.compile(mlp(), backend="eager"), "Sequential"),
        (torch.nn.DataParallel(mlp()), "Sequential"),
        (torch.tanh, "tanh"),
        (functools.partial(torch.cumsum, dim=1), "cumsum"),
        (operator.itemgetter(slice(None)), "itemgetter"),
    ],
)
def test_models_are_named(model, name):
    assert effdeg.measure(model, X, paths=2, nodes=6, degree=3).settings.model == name
