"""PPO on Procgen, with the effective degree of the actor as a penalty: a whole run, from top to bottom.

The algorithm and its values are those of cleanrl's ``ppo_procgen.py``, with 128 games. Frames stay on the device as
bytes. On a GPU the policy, the advantages and the update of a minibatch are CUDA graphs. Games are played in halves:
while the policy looks at the frames of one half, the other moves on.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Beta

from effdeg import Penalty, SineRamp
from effdeg_lab.core.progress import progress_bar
from effdeg_lab.core.runs import Job, StoppedError
from effdeg_lab.core.settings import setting, unnamed
from effdeg_lab.engine.loop import SECONDS_AT_RISK, GpuLock, shares_gpu, tune_kernels
from effdeg_lab.engine.settings import PenaltySettings
from effdeg_lab.engine.step import CapturedStep, autocast, compile_on, refill
from effdeg_lab.experiments.procgen.games import (
    ACTIONS,
    TRAINING,
    UNSEEN,
    Levels,
    Players,
    RewardScale,
    draw_frames,
    import_procgen,
    open_halves,
    play,
    play_episodes,
)
from effdeg_lab.models.impala import Agent

LOGGED = ("policy_loss", "value_loss", "entropy", "kl", "clipped")
_LATEST = 100  # episodes that the returns along training are means of


@dataclass(frozen=True)
class PPO(PenaltySettings):
    """The settings of one run: cleanrl's, with mixreg's number of games, and the paper's for the penalty."""

    game: Literal["starpilot", "dodgeball", "jumper", "fruitbot"] = setting("starpilot", "the game of Procgen")
    backend: Literal["procgen", "toy"] = unnamed(
        "procgen", "what plays it; toy: a built-in game", smoke=lambda _: "toy"
    )
    steps: int = setting(50_000_000, "of all games together", scale=True, least=1, smoke=128)
    games: int = setting(128, "games played in parallel", least=2, smoke=8)
    rollout: int = setting(256, "steps of each game between updates", least=1, smoke=8)
    epochs: int = setting(3, "passes over a rollout", least=1, smoke=1)
    minibatches: int = setting(8, "minibatches of a pass", least=1, smoke=2)
    lr: float = setting(5e-4, "the learning rate", above=0)
    discount: float = setting(0.999, "of later rewards (γ)", least=0, most=1)
    trace: float = setting(0.95, "λ of the advantage estimate", least=0, most=1)
    clip: float = setting(0.2, "the most that PPO lets the probability ratio of an action differ from 1", above=0)
    entropy: float = setting(0.01, "the weight of the policy's entropy", least=0)
    value: float = setting(0.5, "the weight of the critic's loss", least=0)
    max_norm: float = setting(0.5, "the highest norm of a gradient", above=0)
    pooling: Literal["flatten", "average"] = setting("flatten", "how the trunk ends: average as in Impoola")
    mixreg: float = setting(0.0, "mix the examples of a minibatch in shares from Beta(mixreg, mixreg); 0: off", least=0)
    weight: float = setting(0.0, "of the actor's effective degree (λ); if 0, it is not computed", least=0)
    ramp: float = setting(1 / 6, "share of the steps in which the weight rises", least=0, most=1)
    pairs: int = setting(2048, "paths in a minibatch", least=1, smoke=8)
    components: int | None = setting(3, "principal components of the action probabilities", least=1)
    anchor: Literal["none", "self"] = setting("none", "the values at the ends of paths")
    evaluate_every: int = unnamed(1000000, "steps between log entries", least=1, smoke=64)
    episodes: int = unnamed(500, "at least this many are played at the end", least=1, smoke=8)
    precision: Literal["float32", "bf16"] = unnamed("bf16", "of training on a GPU; a CPU computes in float32")
    compile: bool = unnamed(True, "compile the training step, on a GPU; in bf16 convolutions then use our kernels")

    @property
    def batch(self) -> int:
        """The number of steps in a rollout of all games."""
        return self.games * self.rollout

    def check(self) -> None:
        if self.games % 2:
            raise ValueError(f"games={self.games} is odd: games are played in two halves.")
        if self.batch % self.minibatches:
            raise ValueError(f"minibatches={self.minibatches} does not divide games × rollout = {self.batch}.")
        if self.steps < self.batch:
            raise ValueError(f"steps={self.steps} is less than one rollout of games × rollout = {self.batch}.")
        if self.weight > 0 and self.pairs > self.batch // self.minibatches:
            raise ValueError(f"pairs={self.pairs} is more than a minibatch, {self.batch // self.minibatches}.")
        make_penalty(self)


def make_penalty(settings: PPO) -> Penalty:
    """Make the penalty of the paper's appendix F.5: of action probabilities, without labels."""
    return Penalty(**settings.penalty_options, components=settings.components)


def check_games(several: Iterable[PPO], data: Path | None) -> None:  # noqa: ARG001
    if any(each.backend == "procgen" for each in several):
        import_procgen()


def scale_frames(frames: Tensor) -> Tensor:
    """Convert values up to 255, channels last, to values up to 1, channels first."""
    return frames.permute(0, 3, 1, 2).float() / 255


class Batch(NamedTuple):
    """Steps of games, one row each."""

    frames: Tensor
    actions: Tensor
    log_probs: Tensor  # of the actions, when they were chosen
    values: Tensor  # of the frames, then
    advantages: Tensor
    returns: Tensor


def estimate_advantages(rewards: Tensor, values: Tensor, starts: Tensor, *, discount: float, trace: float) -> Tensor:
    """Estimate how much better each action was than expected (GAE; Schulman et al., 2016).

    Rows are steps. Values and starts, which mark frames that begin an episode, have one more row than rewards.
    """
    advantages, last = torch.empty_like(rewards), torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        goes_on = 1 - starts[step + 1]
        error = rewards[step] + discount * goes_on * values[step + 1] - values[step]
        last = advantages[step] = error + discount * trace * goes_on * last
    return advantages


def compute_losses(logits: Tensor, values: Tensor, batch: Batch, settings: PPO) -> tuple[Tensor, Tensor]:
    """Return PPO's loss, and its parts to log, in the order of ``LOGGED``."""
    log_probs = torch.log_softmax(logits, dim=1)
    ratio = (change := log_probs.gather(1, batch.actions[:, None]).squeeze(1) - batch.log_probs).exp()
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    policy = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    near = batch.values + (values - batch.values).clamp(-settings.clip, settings.clip)
    value = 0.5 * torch.maximum((values - batch.returns) ** 2, (near - batch.returns) ** 2).mean()
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    kl, share = (ratio - 1 - change).mean(), ((ratio - 1).abs() > settings.clip).float().mean()
    loss = policy - settings.entropy * entropy + settings.value * value
    return loss, torch.stack([policy, value, entropy, kl, share]).detach()


def mix(batch: Batch, alpha: float) -> Batch:
    """Mix the examples of a minibatch (mixreg; Wang et al., 2020): each keeps the larger share, and its action."""
    count, device = len(batch.actions), batch.frames.device
    alphas = torch.full((count,), alpha, dtype=torch.float64, device=device)
    share = Beta(alphas, alphas, validate_args=False).sample()
    share = torch.maximum(share, 1 - share).float()
    others = torch.randperm(count, device=device)

    def lerp(values: Tensor) -> Tensor:
        values = values.float()
        return torch.lerp(values[others], values, share.view(-1, *[1] * (values.dim() - 1)))

    mixed = {name: lerp(getattr(batch, name)) for name in ("frames", "log_probs", "values", "advantages", "returns")}
    return batch._replace(**mixed)


class Learner:
    """The agent on its device, with the memory that its steps work in, which captured graphs read."""

    def __init__(self, agent: Agent, settings: PPO, frame: tuple[int, int]) -> None:
        self.agent, self._settings = agent, settings
        self._device = device = next(agent.parameters()).device
        self._on_gpu = device.type == "cuda"
        agent.fuse(settings.compile and settings.precision == "bf16")
        self._penalty = make_penalty(settings) if settings.weight > 0 else None
        steps, half = settings.rollout, settings.games // 2
        shape = (steps, settings.games)
        self.frames = torch.zeros(*shape, *frame, 3, dtype=torch.uint8, device=device)
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.log_probs, self.advantages = (torch.zeros(shape, device=device) for _ in range(2))
        self.rewards = torch.zeros(shape, device=device)
        self.values, self.starts = (torch.zeros(steps + 1, settings.games, device=device) for _ in range(2))
        self._seen = torch.zeros(half, *frame, 3, dtype=torch.uint8, device=device)
        self._sent = torch.zeros(half, *frame, 3, dtype=torch.uint8, pin_memory=self._on_gpu)
        self._chosen = (torch.zeros(half, dtype=torch.int64, device=device), *torch.zeros(2, half, device=device))
        self._rows = torch.arange(settings.batch // settings.minibatches, device=device)
        self._weight, self.penalties = torch.zeros((), device=device), torch.zeros((), device=device)
        self.logged = torch.zeros(len(LOGGED), device=device)
        options: dict[str, Any] = {"capturable": True, "fused": True} if self._on_gpu else {}
        self.optimizer = torch.optim.Adam(agent.parameters(), lr=settings.lr, eps=1e-5, **options)
        self._compute = compile_on(device, self._compute_loss, enabled=settings.compile)
        self._look = compile_on(device, agent, enabled=settings.compile)
        self._graphs: dict[str, Callable[[], None]] = {}

    def prepare(self) -> None:
        """Compile and capture, on a GPU, and leave the agent as it was."""
        parts = {"choose": self._choose, "estimate": self._estimate, "update": self._update}
        before = {name: value.clone() for name, value in self.agent.state_dict().items()}
        for name, part in parts.items():
            if self._on_gpu:
                part()  # compiles
            self._graphs[name] = CapturedStep(self.agent, part) if self._on_gpu else part
        if self._on_gpu:
            self.restore({"agent": before, "optimizer": {}})

    def choose(self, frames: NDArray[np.uint8]) -> tuple[NDArray[np.int64], tuple[Tensor, ...]]:
        """Choose actions for half of the games; return them for the games, and with log-probabilities and values."""
        # With NumPy: torch's threads would wait for work on the cores that the games need.
        np.copyto(self._sent.numpy(), frames)
        self._seen.copy_(self._sent, non_blocking=True)
        self._graphs["choose"]()
        return self._chosen[0].cpu().numpy(), (self._seen, *self._chosen)

    def update(self, weight: float) -> None:
        settings = self._settings
        self._graphs["estimate"]()
        self._weight.fill_(weight)
        self.logged.zero_()
        self.penalties.zero_()
        for _ in range(settings.epochs):
            order = torch.randperm(settings.batch, device=self._device)
            for rows in order.view(settings.minibatches, -1):
                self._rows.copy_(rows)
                self._graphs["update"]()

    def state(self) -> dict[str, Any]:
        return {"agent": self.agent.state_dict(), "optimizer": self.optimizer.state_dict()["state"]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's state, in the memory that graphs have captured."""
        self.agent.load_state_dict(state["agent"])
        if (own := self.optimizer.state_dict())["state"]:
            refill(self.optimizer, state["optimizer"])
        else:
            self.optimizer.load_state_dict(own | {"state": state["optimizer"]})

    def close(self) -> None:
        self._graphs.clear()

    @torch.no_grad()
    def _choose(self) -> None:
        with autocast(self._device, self._settings.precision):
            logits, values = self._look(scale_frames(self._seen))
        log_probs = torch.log_softmax(logits, dim=1)
        # The largest of log p plus Gumbel noise is a draw from p, without waiting for the GPU.
        actions = (log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(1)
        found = (actions, log_probs.gather(1, actions[:, None]).squeeze(1), values)
        for place, new in zip(self._chosen, found, strict=True):
            place.copy_(new)

    @torch.no_grad()
    def _estimate(self) -> None:
        discount, trace = self._settings.discount, self._settings.trace
        found = estimate_advantages(self.rewards, self.values, self.starts, discount=discount, trace=trace)
        self.advantages.copy_(found)

    def _update(self) -> None:
        returns = self.advantages + self.values[:-1]
        own = (self.frames, self.actions, self.log_probs, self.values[:-1], self.advantages, returns)
        batch = Batch(*(each.flatten(0, 1)[self._rows] for each in own))
        if self._settings.mixreg > 0:
            batch = mix(batch, self._settings.mixreg)
        self.optimizer.zero_grad()
        loss, logged, penalty = self._compute(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self._settings.max_norm)
        self.optimizer.step()
        self.logged += logged
        self.penalties += penalty

    def _compute_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        x = scale_frames(batch.frames)
        with autocast(self._device, self._settings.precision):
            if self._penalty is None:
                logits, values = self.agent(x)
                loss, logged = compute_losses(logits, values, batch, self._settings)
                return loss, logged, torch.zeros_like(self._weight)
            points = self._penalty.points(x)
            hidden = self.agent.trunk(points.append_to(x))
            logits = self.agent.actor(hidden).float()
            # Only the actor runs on the points: the critic should not become simpler.
            values = self.agent.critic(points.first_rows(hidden)).float().squeeze(1)
            penalty = self._penalty.degree(logits, points)
        loss, logged = compute_losses(points.first_rows(logits), values, batch, self._settings)
        return loss + self._weight * penalty, logged, penalty.detach()


def play_rollout(learner: Learner, halves: Sequence[Players], scale: RewardScale) -> None:
    """Play all games for the steps of a rollout, and write the results into the learner's memory."""
    steps, half = len(learner.rewards), learner.rewards.shape[1] // 2
    parts = [slice(0, half), slice(half, 2 * half)]
    rewards, starts = np.zeros((steps, 2 * half), np.float32), np.zeros((steps + 1, 2 * half), np.float32)
    kept = (learner.frames, learner.actions, learner.log_probs, learner.values)
    for step in range(steps + 1):
        for part, each in zip(parts, halves, strict=True):
            if step > 0:
                each.wait()
                rewards[step - 1, part] = scale(each.rewards, each.starts, part)
                starts[step, part] = each.starts
            if step < steps:
                for place, new in zip(kept, each.act(learner.choose), strict=True):
                    place[step, part] = new
            else:  # what is shown now is acted on in the next rollout; here, only its value matters
                learner.values[step, part] = learner.choose(each.frames)[1][3]
    learner.rewards.copy_(torch.from_numpy(rewards))
    learner.starts.copy_(torch.from_numpy(starts))


class Record:
    """The progress of a run: how many rollouts are done, the seconds of each part, and the latest returns."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.rollouts = device, 0
        self.seconds = dict.fromkeys(("rollout", "update", "evaluation"), 0.0)
        self.returns = {name: deque[float](maxlen=_LATEST) for name in ("train", "test")}

    @contextmanager
    def count(self, part: str) -> Iterator[None]:
        """Count the seconds of a block, including the work that it queued on a GPU."""
        begin = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[part] += time.perf_counter() - begin

    def state(self) -> dict[str, Any]:
        returns = {name: list(each) for name, each in self.returns.items()}
        return {"rollouts": self.rollouts, "seconds": self.seconds, "returns": returns}

    def restore(self, state: dict[str, Any]) -> None:
        self.rollouts = state["rollouts"]
        self.seconds.update(state["seconds"])
        for name, each in self.returns.items():
            each.extend(state["returns"][name])

    def describe(self, learner: Learner, settings: PPO, weight: float) -> dict[str, Any]:
        updates, step = settings.epochs * settings.minibatches, self.rollouts * settings.batch
        values = [float(value) for value in learner.logged / updates]
        if not all(map(math.isfinite, values)):
            raise ValueError(f"training diverged after {step} steps. Try a smaller lr than {settings.lr:g}.")
        means = {f"{name}_return": float(np.mean(each)) if each else None for name, each in self.returns.items()}
        penalty = float(learner.penalties) / updates if settings.weight > 0 else None
        took = {"step": step, "seconds": sum(self.seconds.values())}
        return {**took, **means, "penalty": penalty, "weight": weight, **dict(zip(LOGGED, values, strict=True))}


def train(settings: PPO, job: Job) -> None:
    """Carry out a run, or continue it with new games: the episodes that were being played are lost."""
    state, record = job.start(**({"shared": True} if shares_gpu(job.device) else {})), Record(job.device)
    if state is not None:
        record.restore(state["record"])
    rollouts, every = settings.steps // settings.batch, max(1, settings.evaluate_every // settings.batch)

    def open_all(levels: Levels, part: int) -> list[Players]:
        seeds = (settings.seed, part, record.rollouts)
        return open_halves(settings.game, levels, count=settings.games, backend=settings.backend, seeds=seeds)

    players, testers = open_all(TRAINING, 0), open_all(UNSEEN, 1)
    height, width, _ = players[0].frames.shape[1:]
    torch.manual_seed(settings.seed)
    agent = Agent((height, width), actions=ACTIONS, pooling=settings.pooling).to(job.device)
    agent.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as the frames are
    learner, scale = Learner(agent, settings, (height, width)), RewardScale(settings.games, settings.discount)
    ramp = SineRamp(settings.weight, steps=round(settings.ramp * rollouts))
    title = f"{job.method}, seed {settings.seed}"
    with (
        tune_kernels(job.device),
        closing(learner),
        GpuLock(job),
        progress_bar(title, rollouts, enabled=job.progress) as show,
    ):
        learner.prepare()
        if state is not None:
            learner.restore(state["learner"])
            scale.restore(state["scale"])
        torch.manual_seed(settings.seed + record.rollouts)
        saved = time.perf_counter()
        while record.rollouts < rollouts:
            with record.count("rollout"):
                play_rollout(learner, players, scale)
            weight = float(ramp(record.rollouts + 1))
            with record.count("update"):
                learner.update(weight)
            record.rollouts += 1
            if record.rollouts % every == 0 or record.rollouts == rollouts:
                with record.count("evaluation"):
                    play(learner.choose, testers, settings.rollout)
                for name, halves in (("train", players), ("test", testers)):
                    record.returns[name].extend(value for each in halves for _, value in each.take())
                job.log(record.describe(learner, settings, weight))
                latest = (f"{name} {np.mean(each):.2f}" for name, each in record.returns.items() if each)
                show(record.rollouts, " · ".join(latest))
            asked = job.asked_to_stop()
            if asked or time.perf_counter() - saved > SECONDS_AT_RISK:
                job.save({"record": record.state(), "learner": learner.state(), "scale": scale.state()})
                saved = time.perf_counter()
            if asked:
                raise StoppedError
        summary: dict[str, Any] = {"steps": rollouts * settings.batch, "seconds": sum(record.seconds.values())}
        summary["steps_per_second"] = summary["steps"] / summary["seconds"]
        for name, levels in (("train", TRAINING), ("test", UNSEEN)):
            returns, frames = play_episodes(learner.choose, open_all(levels, 2), settings.episodes)
            error = float(returns.std(ddof=1)) / math.sqrt(len(returns))
            summary |= {f"{name}_return": float(returns.mean()), f"{name}_return_error": error}
            summary[f"{name}_episodes"] = len(returns)
        draw_frames(frames, job.folder / "frames.png")
    summary |= {f"{part}_seconds": value for part, value in record.seconds.items()}
    summary |= {
        "gap": summary["train_return"] - summary["test_return"],
        "parameters": sum(each.numel() for each in agent.parameters()),
    }
    job.finish(summary, {name: value.cpu().contiguous() for name, value in agent.state_dict().items()})
