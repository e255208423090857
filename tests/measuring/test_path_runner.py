import functools
import operator

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from tests.models import mlp

X = torch.randn(20, 6)


class TestFingerprint:
    def fingerprint(self, inputs=X, model=None, **settings):
        settings = {"paths": 40, "nodes": 6, "degree": 3} | settings
        return effdeg.measure(model or mlp(), inputs, **settings).settings.fingerprint

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

    def test_every_path_counts(self):
        pairs = effdeg.measure(mlp(), X, paths=40, nodes=6, degree=3).pairs
        late = next(each for each in pairs[39].tolist() if each not in pairs[:16])
        other = X.index_fill(0, torch.tensor([late]), 0.0)
        assert self.fingerprint(other) != self.fingerprint()
        assert self.fingerprint(other, paths=16) == self.fingerprint(paths=16)

    def test_paths_that_were_fetched_in_vain_do_not_count(self):
        settings = {"paths": 400, "tolerance": 0.9}
        assert self.fingerprint(batch_size=5, **settings) == self.fingerprint(batch_size=4000, **settings)

    def test_every_tensor_counts(self):
        def model(x, mask):
            return x * mask

        mask = torch.ones(20, 6, dtype=torch.bool)
        one, same, other = (self.fingerprint((X, each), model) for each in (mask, mask.clone(), mask & (X > 0)))
        assert one == same != other


class TestBatches:
    def test_few_nodes_fill_a_batch_too(self):
        sizes = []

        def model(x):
            sizes.append(len(x))
            return x

        effdeg.measure(model, X, output="identity", paths=100, nodes=4, degree=3)
        assert sizes == [8, 8, 8, 256, 144]  # three times 8 is the trial of whether rows are independent
        sizes.clear()
        effdeg.trace(model, X, paths=100, nodes=10, batch_size=330)
        assert sizes == [8, 8, 8, 320, 320, 320, 40]

    def test_they_stop_at_the_same_path(self):
        # The first batch of the second measurement holds all paths.
        settings = {"paths": 500, "nodes": 4, "degree": 3, "tolerance": 0.05, "dtype": torch.float64}
        one, other = (effdeg.measure(mlp(), X, batch_size=size, **settings) for size in (64, 2000))
        assert 64 < len(one.per_path) < 500
        torch.testing.assert_close(other.per_path, one.per_path, rtol=1e-10, atol=0)

    def test_they_do_not_change_how_a_loader_pads(self):
        texts = [torch.randn(length) for length in [3] * 19 + [9]]
        loader = DataLoader(texts, collate_fn=functools.partial(pad_sequence, batch_first=True))
        widths = []

        def model(x):
            widths.append(x.shape[1])
            return x.mean(1)

        settings = {"output": "identity", "paths": 200, "nodes": 4, "degree": 3}
        one, other = (effdeg.measure(model, loader, batch_size=size, **settings) for size in (64, 2000))
        assert set(widths) == {3, 9}
        torch.testing.assert_close(other.per_path, one.per_path, rtol=1e-4, atol=0)


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
    assert effdeg.measure(model, X, paths=2, nodes=6, degree=3, dtype=torch.float32).settings.model == name


@pytest.mark.parametrize(("offset", "noted"), [(0.0, False), (100.0, False), (1e6, True)])
def test_inputs_far_from_zero_are_noted(offset, noted):
    measured = effdeg.measure(lambda x: (x - offset).tanh(), X + offset, paths=4, nodes=12, degree=3)
    assert any("the inputs (up to 1e+06) differ by" in note for note in measured.warnings()) == noted


@pytest.mark.parametrize("mixes", [True, False])
def test_a_collate_fn_that_mixes_examples_is_told(mixes, recwarn):
    data = TensorDataset(torch.randn(20, 6), torch.arange(20))

    def collate(items):
        x = torch.stack([item[0] for item in items])
        return 0.5 * x + 0.5 * x[torch.randperm(len(x))] if mixes else 2 * x + torch.randn(x.shape)

    effdeg.measure(mlp(), DataLoader(data, collate_fn=collate), paths=4, nodes=12, degree=4)
    told = [each for each in recwarn if "collate_fn returns for an example depends on the others" in str(each.message)]
    assert len(told) == mixes
