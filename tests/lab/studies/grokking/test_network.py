import pytest
import torch
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from effdeg.lab.studies.grokking.network import Decoder


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Decoder(prime=7, width=16, heads=2, depth=2).double()


def tokens(count):
    numbers = torch.randint(7, (count, 2), generator=torch.Generator().manual_seed(1))
    signs = torch.tensor([7, 8]).expand(count, 2)
    return torch.stack([numbers[:, 0], signs[:, 0], numbers[:, 1], signs[:, 1]], dim=1)


def naive(model, tokens):
    """The same network at all positions, by torch's attention, from its weights alone."""
    state = model.state_dict()
    positions = torch.tensor([
        [
            f(place / 10_000 ** (2 * (index // 2) / 16))
            for index in range(16)
            for f in [(torch.sin, torch.cos)[index % 2]]
        ]
        for place in torch.arange(4).double()
    ])
    x = state["embed.tokens.weight"][tokens] + positions
    for block in ("blocks.0", "blocks.1"):
        keys, values = (x @ state[f"{block}.keys_and_values.weight"].T).chunk(2, dim=-1)
        queries = x @ state[f"{block}.queries.weight"].T
        heads = [each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (queries, keys, values)]
        attended = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + attended @ state[f"{block}.out.weight"].T
        x = layer_norm(x, (16,), state[f"{block}.norms.0.weight"], state[f"{block}.norms.0.bias"])
        hidden = (x @ state[f"{block}.mlp.0.weight"].T).clamp(min=0)
        x = x + hidden @ state[f"{block}.mlp.2.weight"].T
        x = layer_norm(x, (16,), state[f"{block}.norms.1.weight"], state[f"{block}.norms.1.bias"])
    return (x @ state["answer.weight"].T)[:, -1]


def test_answers_are_those_of_a_causal_decoder_at_the_equals_sign(model):
    given = tokens(20)
    torch.testing.assert_close(model(given), naive(model, given), rtol=1e-6, atol=1e-6)


def test_both_numbers_matter(model):
    given = tokens(1).repeat(3, 1)
    given[1, 0], given[2, 2] = (given[0, 0] + 1) % 7, (given[0, 2] + 1) % 7
    first, *others = model(given)
    assert all(not torch.allclose(first, other, atol=1e-3) for other in others)


def test_a_path_at_the_embedding_leaves_the_signs_alone(model):
    one, other = model.embed(tokens(2))
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[3], other[3])
