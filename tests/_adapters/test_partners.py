from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import effdeg
from effdeg import changes

IMAGES = torch.rand(30, 1, 6, 6, generator=torch.Generator().manual_seed(0))
OPTIONS = {"paths": 40, "nodes": 24, "degree": 8, "output": "identity"}


MODEL = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))
for parameter in MODEL.parameters():
    nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))


def make_model():
    return deepcopy(MODEL)


def test_a_path_leads_from_an_example_to_its_changed_copy():
    model = make_model().double()
    trace = effdeg.trace(model, IMAGES.double(), partners=changes.mirror, paths=40, nodes=24)
    assert torch.equal(trace.pairs[:, 0], trace.pairs[:, 1])
    images, alpha = IMAGES[trace.pairs[:, :1]].double(), trace.alpha[..., None, None, None]
    points = alpha * images + (1 - alpha) * images.flip(-1)
    expected = model(points.flatten(0, 1)).unflatten(0, (40, 24)).detach()
    torch.testing.assert_close(trace.values("identity"), expected)
    per_path = effdeg.functional.effective_degree(effdeg.functional.fit(expected, trace.alpha, 8))
    measured = effdeg.measure(model, IMAGES.double(), partners=changes.mirror, **OPTIONS)
    torch.testing.assert_close(measured.per_path, per_path)


def test_a_second_data_set_gives_the_same_as_the_function_that_made_it():
    by_function = effdeg.measure(make_model(), IMAGES, partners=changes.mirror, **OPTIONS)
    by_data = effdeg.measure(make_model(), IMAGES, partners=IMAGES.flip(-1), **OPTIONS)
    assert torch.equal(by_function.per_path, by_data.per_path)
    assert (by_function.settings.partners, by_data.settings.partners) == ("mirror", "a second data set")


@pytest.mark.parametrize("partners", [changes.noise(0.5), (changes.mirror, changes.noise(0.5)), lambda x: x * 0])
def test_random_changes_depend_on_the_seed_alone(partners):
    model, state = make_model(), torch.get_rng_state()
    values = [
        effdeg.measure(model, IMAGES, partners=partners, batch_size=size, seed=seed, **OPTIONS).per_path
        for size, seed in ((7, 0), (1000, 0), (1000, 1))
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(values[1], values[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("partners", ["mirror", 3, [], IMAGES * torch.nan])
def test_errors_in_a_second_data_set_say_that_it_is_one(partners):
    with pytest.raises((TypeError, ValueError)) as raised:
        effdeg.measure(make_model(), IMAGES, partners=partners, **OPTIONS)
    assert "The inputs that this is about are partners=" in raised.value.__notes__[0]


def test_comparisons_do_not_mix_partners():
    measured = [effdeg.measure(make_model(), IMAGES, partners=each, **OPTIONS) for each in (None, changes.mirror)]
    with pytest.raises(ValueError, match="partners: None and mirror"):
        effdeg.compare(measured)
    models = {"a": make_model(), "b": nn.Sequential(make_model(), nn.Tanh())}
    both = effdeg.compare(models, IMAGES, partners=changes.mirror, **OPTIONS)
    assert both.measurements["a"].settings.partners == "mirror"


@pytest.mark.parametrize(
    ("partners", "message"),
    [
        (lambda x: x[..., :3], "function of partners= returned .* a batch of the same shape"),
        (lambda x: None, "returned NoneType"),
        (lambda x: x / 0, "returned NaN or infinite"),
        (IMAGES[:3], "are 3 examples, but inputs hold 30"),
    ],
)
def test_bad_partners_are_refused(partners, message):
    with pytest.raises((ValueError, TypeError), match=message):
        effdeg.measure(make_model(), IMAGES, partners=partners, **OPTIONS)


def test_a_function_that_works_in_place_leaves_the_data_alone():
    kept = IMAGES.clone()
    effdeg.measure(make_model(), IMAGES, partners=lambda x: x.mul_(0.5), **OPTIONS)
    assert torch.equal(IMAGES, kept)


def test_proxies_along_paths_lead_to_partners_too():
    # The class is that of the brighter half, which a mirror exchanges.
    def predict(images):
        halves = images.flatten(1, 2).unflatten(-1, (2, 3)).mean((1, 3))
        return 10 * halves

    flipped = effdeg.proxies.decision_regions(predict, IMAGES, partners=changes.mirror, paths=20)
    still = effdeg.proxies.decision_regions(predict, IMAGES, partners=lambda x: x + 0.1, paths=20)
    assert (flipped.value, still.value) == (2.0, 1.0)


def test_threads_do_not_share_random_changes():
    def measure(_):
        return effdeg.measure(make_model(), IMAGES, partners=changes.noise(0.5), **OPTIONS).value

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(measure, range(12)))) == 1


OWN = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.flip(0),
        lambda x: x[torch.randperm(len(x))],
        lambda x: x - x.mean(0),
        lambda x: 0.5 * x + 0.5 * x.flip(0),
    ],
)
def test_changes_that_depend_on_other_examples_are_told(change):
    with pytest.warns(UserWarning, match=r"function of partners= \(<lambda>\) does not change each example"):
        effdeg.measure(make_model(), IMAGES, partners=change, **OPTIONS)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "change",
    [
        changes.compose(changes.mirror, changes.shift(2)),
        changes.crop(0.5),
        [changes.noise(0.1), changes.mirror],
        lambda x: x * torch.rand(len(x), 1, 1, 1),
        lambda x: x + torch.randn(x.shape, generator=OWN),
        lambda x: x.mul_(0.5),
    ],
)
def test_changes_of_one_example_each_are_not(change):
    assert effdeg.measure(make_model(), IMAGES, partners=change, **OPTIONS).value > 0


def test_a_second_data_set_has_the_order_of_the_inputs():
    data = TensorDataset(IMAGES)
    own = DataLoader(data, sampler=SubsetRandomSampler(range(len(IMAGES))))
    for inputs, partners in ((IMAGES, own), (own, IMAGES)):
        with pytest.raises(ValueError, match="sampler selects and orders examples"):
            effdeg.measure(make_model(), inputs, partners=partners, **OPTIONS)
    shuffled = DataLoader(data, shuffle=True)  # of which examples are read by their index
    assert effdeg.measure(make_model(), shuffled, partners=shuffled, **OPTIONS).value < 1e-6
