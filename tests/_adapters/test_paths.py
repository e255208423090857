import pytest
import torch
from torch import nn

import effdeg
from effdeg._adapters import paths
from tests.models import Tokens


@pytest.mark.parametrize("kind", ["seeded", "of a batch"])
def test_pairs_are_uniform(kind):
    if kind == "seeded":
        pairs = paths.draw_pairs(5, 8000, seed=0)
    else:
        generator = torch.Generator().manual_seed(0)
        pairs = paths.draw_pairs_of_batch(5, 8000, device=torch.device("cpu"), generator=generator)
    counts = torch.zeros(5, 5).index_put_((pairs[:, 0], pairs[:, 1]), torch.ones(8000), accumulate=True)
    assert bool((counts.diagonal() == 0).all())
    expected = 8000 / 20
    statistic = float(((counts - expected) ** 2 / expected).sum() - 5 * expected)
    assert statistic < 43.8  # chi-squared with 19 degrees of freedom, 0.1%


def test_the_first_of_more_paths_are_the_same():
    assert torch.equal(paths.draw_pairs(30, 100, seed=3)[:40], paths.draw_pairs(30, 40, seed=3))
    assert not torch.equal(paths.draw_pairs(30, 40, seed=3), paths.draw_pairs(30, 40, seed=4))


def test_a_single_example_of_a_batch_is_paired_with_itself():
    assert paths.draw_pairs_of_batch(1, 3, device=torch.device("cpu"), generator=None).tolist() == [[0, 0]] * 3


def test_every_block_has_its_own_nodes_whatever_its_length():
    first, second = slice(0, paths.BLOCK), slice(paths.BLOCK, paths.BLOCK + 3)
    assert paths.draw_nodes("cosine", 7, second, seed=0).shape == (3, 7)
    whole = paths.draw_nodes("cosine", 7, slice(paths.BLOCK, 2 * paths.BLOCK), seed=0)
    assert torch.equal(paths.draw_nodes("cosine", 7, second, seed=0), whole[:3])
    assert not torch.equal(whole, paths.draw_nodes("cosine", 7, first, seed=0))
    assert paths.draw_nodes("uniform", 3, second, seed=0).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_points_lie_on_the_line_from_the_second_to_the_first(dtype):
    first, second = torch.tensor([[4.0], [8.0]], dtype=dtype), torch.tensor([[0.0], [6.0]], dtype=dtype)
    points = paths.interpolate({"x": first}, {"x": second}, torch.tensor([[0, 0.5, 1]] * 2, dtype=torch.float64))["x"]
    assert (points.dtype, points.flatten().tolist()) == (dtype, [0.0, 2.0, 4.0, 6.0, 7.0, 8.0])


MASKS = {
    "booleans": ("x", torch.tensor([True, False]), True),
    "integers by name": ("attention_mask", torch.tensor([1, 0]), True),
    "nested name": ("tokens.attention_mask[0]", torch.tensor([1, 0]), True),
    "name in a tuple": ("[0].tokens[1].attention_mask", torch.tensor([1, 0]), True),
    "name of a whole": ("masked[0].tokens", torch.tensor([1, 0]), False),
    "token types": ("token_type_ids", torch.tensor([1, 0]), False),
    "floating": ("mask", torch.tensor([1.0, 0.0]), False),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_are_known_by_type_and_name_not_by_values(kind):
    name, leaf, expected = MASKS[kind]
    assert paths.is_mask(name, leaf) is expected


@pytest.mark.parametrize(
    ("name", "one", "other", "joined"),
    [
        ("attention_mask", [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0]),
        ("padding_mask", [True, True, False, False], [True, False, True, False], [True, False, False, False]),
        ("mask", [0.0, 0.0, -9.0, -9.0], [0.0, -9.0, 0.0, -9.0], [0.0, 0.0, 0.0, -9.0]),
        ("pad_mask", [0.0, 0.0, -9.0, -9.0], [0.0, -9.0, 0.0, -9.0], [0.0, 0.0, 0.0, -9.0]),
        ("key_padding_mask", [0.0, -torch.inf], [-torch.inf, -torch.inf], [0.0, -torch.inf]),
        ("mask", [0.0, -torch.inf], [-torch.inf, -torch.inf], [0.0, -torch.inf]),
        ("keep", [True, True, False, False], [True, False, True, False], [True, True, True, False]),
        ("attention_mask", [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]),
        ("pad_mask", [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]),
        ("pad_mask", [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]),
        ("levels_mask", [1, 1, 0, 2], [2, 0, 1, 1], [2, 1, 1, 2]),  # as Longformer has them
        # No mask by its name: the first end's, whatever the values.
        ("token_type_ids", [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]),
        ("scores", [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]),
        ("ids", [1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]),
    ],
)
def test_joined_masks_show_what_either_end_sees(name, one, other, joined):
    found = paths.join_masks({name: torch.tensor([one])}, {name: torch.tensor([other])})[name]
    assert found.tolist() == [joined]


def test_what_cannot_be_interpolated_is_named_with_advice():
    paths.check_interpolable({"x": torch.rand(2, 3), "mask": torch.tensor([1, 0])}, advice=lambda: "")
    with pytest.raises(TypeError, match=r"inputs \('ids'\) hold integers \(torch.int64\).*ADVICE.*pass booleans"):
        paths.check_interpolable({"x": torch.rand(2), "ids": torch.arange(2)}, advice=lambda: "ADVICE")
    with pytest.raises(TypeError, match=r"^inputs hold integers"):  # a tensor that was put into a tuple
        paths.check_interpolable((torch.arange(2),), advice=lambda: "")


def test_examples_with_a_mask_may_be_in_a_tuple():
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)
    batch = {"x": torch.randn(6, 4), "attention_mask": torch.ones(6, 4, dtype=torch.int64)}
    cases = [
        (lambda x: linear(x).sin(), batch["x"]),
        (lambda x, attention_mask: linear(x * attention_mask).sin(), batch),
        (lambda given: linear(given["x"] * given["attention_mask"]).sin(), (batch,)),
    ]
    settings = {"paths": 16, "nodes": 20, "degree": 5, "output": "identity"}
    first, *others = (effdeg.measure(model, x, **settings).value for model, x in cases)
    assert others == pytest.approx([first, first], rel=1e-5)
    degrees = []
    for model, x in cases:
        torch.manual_seed(1)
        degrees.append(effdeg.Penalty(output="identity")(model, x)[1].item())
    assert degrees[1:] == pytest.approx(2 * degrees[:1], rel=1e-5)


def test_integers_that_are_no_mask_are_refused():
    """As where token ids and a mask are given in the wrong order."""
    ids, mask = torch.randint(2, 30, (10, 5)), torch.ones(10, 5, dtype=torch.int64)
    model = Tokens()
    for inputs in ((mask, ids), {"input_ids": mask, "attention_mask": ids}):
        with pytest.raises(ValueError, match=r"\('attention_mask'\) hold integers from .* a mask is usually 0 and 1"):
            effdeg.measure(model, inputs, at="embed", paths=4, nodes=12, degree=4)
        with pytest.raises(ValueError, match=r"x \('attention_mask'\) hold integers"):
            effdeg.Penalty(at="embed")(model, inputs)
