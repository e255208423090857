"""PPO against slow oracles, and whole runs on a tiny game: what they find there is never shown as Procgen's."""

import math
import re

import numpy as np
import pytest
import torch
from engine_runs import carry_out
from PIL import Image

from effdeg_lab.experiments.procgen import ppo
from effdeg_lab.experiments.procgen.games import TRAINING, RewardScale, open_halves, play, play_episodes
from effdeg_lab.experiments.procgen.ppo import PPO, Batch, Learner, compute_losses, estimate_advantages, mix, train
from effdeg_lab.models.impala import Agent

SMALL = {
    "games": 8, "rollout": 8, "minibatches": 2, "epochs": 2, "steps": 256, "pairs": 16, "episodes": 16,
    "backend": "toy",
}  # fmt: skip


def small(**changes):
    return PPO(**{**SMALL, "evaluate_every": 128, **changes})


def test_advantages_are_sums_of_discounted_errors_up_to_the_end_of_the_episode():
    """By the definition, a double sum: Σ_l (γλ)^l δ_{t+l}, as long as no episode begins in between."""
    torch.manual_seed(0)
    steps, games, discount, trace = 9, 3, 0.9, 0.8
    rewards, values = torch.randn(steps, games).double(), torch.randn(steps + 1, games).double()
    starts = (torch.rand(steps + 1, games) < 0.3).double()
    found = estimate_advantages(rewards, values, starts, discount=discount, trace=trace)
    for game in range(games):
        for first in range(steps):
            expected, factor = 0.0, 1.0
            for step in range(first, steps):
                ends = bool(starts[step + 1, game])
                following = 0.0 if ends else discount * float(values[step + 1, game])
                expected += factor * (float(rewards[step, game]) + following - float(values[step, game]))
                factor *= discount * trace
                if ends:
                    break
            assert float(found[first, game]) == pytest.approx(expected)


def make_batch(count=12, frame=(8, 8, 3)):
    torch.manual_seed(1)
    old = torch.log_softmax(torch.randn(count, 15), dim=1)
    actions = torch.randint(15, (count,))
    numbers = (torch.randn(count) for _ in range(3))
    return Batch(255 * torch.rand(count, *frame), actions, old[torch.arange(count), actions], *numbers)


def test_losses_are_those_of_the_paper_one_example_at_a_time():
    batch, settings = make_batch(), small(clip=0.2, entropy=0.03, value=0.7)
    logits, values = torch.randn(12, 15), torch.randn(12)
    loss, logged = compute_losses(logits, values, batch, settings)
    advantages = batch.advantages.tolist()
    mean = sum(advantages) / 12
    spread = math.sqrt(sum((each - mean) ** 2 for each in advantages) / 11)
    policy = value = entropy = kl = clipped = 0.0
    for row in range(12):
        weights = [math.exp(each) for each in logits[row].tolist()]
        chances = [each / sum(weights) for each in weights]
        change = math.log(chances[batch.actions[row]]) - float(batch.log_probs[row])
        ratio, advantage = math.exp(change), (advantages[row] - mean) / spread
        policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / 12
        old, new, target = (float(each[row]) for each in (batch.values, values, batch.returns))
        near = old + min(max(new - old, -0.2), 0.2)
        value += 0.5 * max((new - target) ** 2, (near - target) ** 2) / 12
        entropy -= sum(each * math.log(each) for each in chances) / 12
        kl += (ratio - 1 - change) / 12
        clipped += (abs(ratio - 1) > 0.2) / 12
    assert logged.tolist() == pytest.approx([policy, value, entropy, kl, clipped], rel=1e-4)
    assert float(loss) == pytest.approx(policy - 0.03 * entropy + 0.7 * value, rel=1e-4)


def test_mixed_examples_keep_the_larger_share_and_their_action():
    batch = make_batch(200, frame=(1, 2, 2))
    # A number that tells which example it was, so that the shares can be read off.
    place = torch.arange(200.0)
    marked = batch._replace(frames=place[:, None, None, None].expand(200, 1, 2, 2), values=place, returns=2 * place)
    torch.manual_seed(0)
    found = mix(marked, 0.2)
    assert torch.equal(found.actions, batch.actions)
    torch.testing.assert_close(found.frames[:, 0, 0, 0], found.values)
    torch.testing.assert_close(found.returns, 2 * found.values)
    torch.manual_seed(0)
    shares = torch.distributions.Beta(torch.full((200,), 0.2).double(), torch.full((200,), 0.2).double()).sample()
    shares = torch.maximum(shares, 1 - shares)
    partners = (found.values - shares * place) / (1 - shares)
    sure = shares < 0.9  # where rounding does not hide the partner
    assert int(sure.sum()) > 20
    torch.testing.assert_close(partners[sure], partners[sure].round(), rtol=0, atol=0.05)
    assert not torch.equal(partners[sure].round(), place[sure].double())


def test_rewards_are_divided_by_the_deviation_of_discounted_returns():
    random, scale, seen = np.random.default_rng(0), RewardScale(4, 0.9), []
    running = np.zeros(4)
    for _ in range(200):
        for part in (slice(0, 2), slice(2, 4)):
            rewards, ends = random.normal(3, 2, 2).astype(np.float32), random.random(2) < 0.2
            running[part] = 0.9 * running[part] + rewards
            seen += running[part].tolist()
            found = scale(rewards, ends, part)
            running[part][ends] = 0
    expected = np.clip(rewards / np.std(seen), -10, 10)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    again = RewardScale(4, 0.9)
    again.restore(scale.state())
    assert (again.count, again.mean, again.variance) == (scale.count, scale.mean, scale.variance)


def act_at_random(frames):
    return np.random.default_rng(int(frames.sum())).integers(0, 15, len(frames)), None


def test_every_game_plays_the_same_number_of_episodes():
    """The mean over the first episodes to end would be that of short ones."""
    halves = open_halves("starpilot", TRAINING, count=8, backend="toy", seeds=(0,))
    returns, frames = play_episodes(act_at_random, halves, 20)
    assert (returns.shape, frames.dtype, frames.ndim) == ((24,), np.uint8, 5)
    slow = open_halves("starpilot", TRAINING, count=8, backend="toy", seeds=(0,))
    expected = []
    for half in slow:
        ended = {game: [] for game in range(4)}
        while min(map(len, ended.values())) < 3:
            play(act_at_random, [half], 1)
            for game, value in half.take():
                ended[game].append(value)
        expected += [value for game in range(4) for value in ended[game][:3]]
    assert returns.tolist() == expected


@pytest.mark.parametrize("changes", [{}, {"weight": 0.01, "anchor": "self", "mixreg": 0.2}])
def test_every_method_runs_and_is_recorded(tmp_path, changes):
    found = carry_out(tmp_path, small(**changes, pooling="average"), train)
    metrics, summary = found.metrics, found.summary
    assert [entry["step"] for entry in metrics] == [128, 256]
    assert all((entry["penalty"] is not None) == ("weight" in changes) for entry in metrics)
    assert metrics[-1]["weight"] == changes.get("weight", 0.0)
    assert all(math.isfinite(entry[name]) for entry in metrics for name in ppo.LOGGED)
    assert summary["steps"] == 256
    assert (summary["test_episodes"], summary["train_episodes"]) == (16, 16)
    assert summary["gap"] == summary["train_return"] - summary["test_return"]
    with Image.open(found.file.with_suffix("") / "frames.png") as sheet:
        assert min(sheet.size) > 8
    Agent((8, 8), actions=15, pooling="average").load_state_dict(found.weights)


@pytest.mark.parametrize("anchor", ["none", "self"])
def test_the_penalty_reaches_the_actor_and_the_trunk_but_not_the_critic(anchor):
    torch.manual_seed(0)
    settings = small(weight=1.0, anchor=anchor)
    learner = Learner(Agent((8, 8), actions=15), settings, (8, 8))
    torch.nn.init.normal_(learner.agent.actor.weight)
    batch = make_batch(32)
    gradients = []
    for weight in (0.0, 1000.0):
        learner._weight.fill_(weight)
        learner.optimizer.zero_grad()
        torch.manual_seed(2)
        loss, _, penalty = learner._compute_loss(batch)
        loss.backward()
        gradients.append({name: each.grad.clone() for name, each in learner.agent.named_parameters()})
    assert float(penalty) > 0
    for name, before in gradients[0].items():
        assert torch.equal(before, gradients[1][name]) == name.startswith("critic"), name


def test_a_run_that_is_killed_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch, capsys):
    """What was logged after it is logged again. The progress bar has the latest returns."""
    settings = small(weight=0.01, rollout=4, steps=128, evaluate_every=32, epochs=1, minibatches=1, episodes=8)
    monkeypatch.setattr(ppo, "SECONDS_AT_RISK", -1.0)
    update, restore, after, restored = Learner.update, Learner.restore, [], []

    def break_off(learner, weight):
        update(learner, weight)
        after.append({name: value.clone() for name, value in learner.agent.state_dict().items()})
        if len(after) == 3:
            raise KeyboardInterrupt

    def watch(learner, state):
        restored.append([int(each["step"]) for each in state["optimizer"].values()])
        restore(learner, state)
        assert all(torch.equal(value, after[1][name]) for name, value in learner.agent.state_dict().items())

    monkeypatch.setattr(Learner, "update", break_off)
    monkeypatch.setattr(Learner, "restore", watch)
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, settings, train)
    assert "train" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take it for a terminal
    found = carry_out(tmp_path, settings, train, progress=True)
    assert [{*steps} for steps in restored] == [{2}]
    assert len(after) == 3 + 2
    assert [entry["step"] for entry in found.metrics] == [32, 64, 96, 128]
    assert found.summary["steps"] == 128
    assert re.search(r"train \d\.\d\d · test \d\.\d\d ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"games": 7}, "games=7 is odd"),
        ({"minibatches": 5}, "does not divide games × rollout = 64"),
        ({"steps": 50}, "steps=50 is less than one rollout"),
        ({"weight": 0.1, "pairs": 33}, "pairs=33 is more than a minibatch, 32"),
        ({"nodes": 3}, "nodes"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_the_network_is_that_of_impala():
    """15 convolutions and 626,256 parameters with frames of 64 × 64, as cleanrl's has."""
    agent = Agent((64, 64), actions=15)
    assert sum(isinstance(each, torch.nn.Conv2d) for each in agent.modules()) == 15
    assert sum(each.numel() for each in agent.parameters()) == 626_256
