"""Add the penalty to a PPO update that you already have. Three lines are new: those marked with "effdeg".

    python examples/ppo_penalty.py [SEEDS]

The game: walk to the goal and not into a pit, on a board that the level's number decides. A policy is trained on 50
levels and plays these and 1,000 others, without the penalty and with it. Three seeds take less than a minute on a core
of a CPU. On so small a game the penalty makes the policy simpler, not better: it shows how, not how much.
"""

import sys

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import effdeg

SIZE, PITS, LONGEST = 4, 2, 25  # cells in a row of the board, pits on it, steps of an episode
TRAINING, UNSEEN = range(50), range(50, 1050)  # levels
GAMES, ROLLOUT, UPDATES, EPOCHS, MINIBATCH = 64, 16, 40, 3, 256
DISCOUNT, TRACE, CLIP = 0.97, 0.95, 0.2
WEIGHT, SEEDS = 0.1, int(sys.argv[1]) if len(sys.argv) > 1 else 3
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Games:
    """Games played side by side, each on a level of its own; where an episode ends, another level begins."""

    def __init__(self, levels: range, count: int) -> None:
        boards = [torch.randperm(SIZE**2, generator=torch.Generator().manual_seed(level)) for level in levels]
        self.boards = torch.stack(boards)[:, : 2 + PITS]  # the cells of the start, of the goal, and of the pits
        self.level = torch.arange(count) % len(levels)
        self.cell, self.time = self.boards[self.level, 0], torch.zeros(count, dtype=torch.long)

    def observe(self) -> Tensor:
        """Return three images of each game, in a row: the agent, the goal, the pits."""
        images, board = torch.zeros(len(self.cell), 3, SIZE**2), self.boards[self.level]
        for image, cells in enumerate((self.cell[:, None], board[:, 1:2], board[:, 2:])):
            images[:, image].scatter_(1, cells, 1.0)
        return images.flatten(1)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Move the agents; return the rewards, and whether the episodes have ended."""
        place = torch.stack([self.cell // SIZE, self.cell % SIZE], dim=1) + MOVES[actions]
        row, column = place.clamp(0, SIZE - 1).unbind(1)
        self.cell, self.time, board = row * SIZE + column, self.time + 1, self.boards[self.level]
        won, lost = self.cell == board[:, 1], (self.cell[:, None] == board[:, 2:]).any(1)
        done = won | lost | (self.time == LONGEST)
        self.level = torch.where(done, torch.randint(len(self.boards), done.shape), self.level)
        self.cell = torch.where(done, self.boards[self.level, 0], self.cell)
        self.time = torch.where(done, 0, self.time)
        return won.float() - lost.float(), done


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3 * SIZE**2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


@torch.no_grad()
def play(actor: nn.Module, levels: range) -> float:
    """Play an episode on every level; return the mean of their returns."""
    games, going, total = Games(levels, len(levels)), torch.ones(len(levels)), torch.zeros(len(levels))
    for _ in range(LONGEST):
        rewards, done = games.step(Categorical(logits=actor(games.observe())).sample())
        total += going * rewards
        going *= ~done
    return total.mean().item()


def train(seed: int, weight: float) -> nn.Module:
    torch.manual_seed(seed)
    actor, critic, games = network(len(MOVES)), network(1), Games(TRAINING, GAMES)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    penalty = effdeg.Penalty(pairs=MINIBATCH // 2)  # effdeg
    for _ in range(UPDATES):
        steps = []
        with torch.no_grad():
            for _ in range(ROLLOUT):
                x = games.observe()
                policy = Categorical(logits=actor(x))
                action = policy.sample()
                steps.append((x, action, policy.log_prob(action), critic(x)[:, 0], *games.step(action)))
            x, action, log_prob, value, reward, done = map(torch.stack, zip(*steps, strict=True))
            advantage, later, next_value = torch.zeros_like(value), 0.0, critic(games.observe())[:, 0]
            for t in reversed(range(ROLLOUT)):
                error = reward[t] + DISCOUNT * next_value * ~done[t] - value[t]
                advantage[t] = later = error + DISCOUNT * TRACE * later * ~done[t]
                next_value = value[t]
        rollout = [each.flatten(0, 1) for each in (x, action, log_prob, advantage, advantage + value)]
        for _ in range(EPOCHS):
            for rows in torch.randperm(GAMES * ROLLOUT).split(MINIBATCH):
                observations, actions, old, gain, returns = (each[rows] for each in rollout)
                policy = Categorical(logits=actor(observations))
                ratio, gain = (policy.log_prob(actions) - old).exp(), (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = -torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                value_loss = (critic(observations)[:, 0] - returns).square().mean()
                loss = policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()
                if weight > 0:
                    points = penalty.points(observations)  # effdeg
                    loss = loss + weight * penalty.degree(actor(points.inputs), points)  # effdeg; never the critic
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
    return actor


if SEEDS < 2:
    sys.exit(f"SEEDS is {SEEDS}, but a standard error needs at least 2.")
torch.set_num_threads(1)  # more are slower: the networks are small
first_frames, gains = Games(UNSEEN, len(UNSEEN)).observe(), []
for seed in range(SEEDS):
    returns = []
    for name, weight in (("plain", 0.0), ("with the penalty", WEIGHT)):
        actor = train(seed, weight)
        degree = effdeg.measure(actor, first_frames, nodes=64).value
        returns.append(play(actor, UNSEEN))
        found = f"return {play(actor, TRAINING):.2f} on training levels, {returns[-1]:.2f} on unseen levels"
        print(f"seed {seed}, {name}: {found}; effective degree {degree:.2f}", flush=True)
    gains.append(returns[1] - returns[0])
error, mean = torch.std_mean(torch.tensor(gains))
print(f"penalty minus plain on unseen levels: {mean:+.2f} ± {error / SEEDS**0.5:.2f} (standard error over seeds)")
