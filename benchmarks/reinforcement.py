"""How long the parts of PPO on Procgen take, on a GPU: an action, an update of a minibatch, a rollout."""

import time
from collections.abc import Callable

import torch

from benchmarks.timing import Record
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.experiments.procgen.games import ACTIONS, TRAINING, RewardScale, open_halves
from effdeg_lab.experiments.procgen.ppo import PPO, Learner, play_rollout
from effdeg_lab.models.impala import Agent

GAME, METHODS = "starpilot", ("plain", "mixreg", "ed")


def ppo_parts() -> Record:
    """Time the parts of plain PPO, of mixreg and of PPO with the penalty.

    Rollouts are timed where the package procgen is installed. Steps per second are those of rollouts and updates,
    without the evaluation along training.
    """
    torch.backends.cudnn.benchmark = True
    rows = [{"variant": f"{method}-fused", "method": method, **_time_parts(method)} for method in METHODS]
    return {"name": "parts of PPO on Procgen", "rows": rows}


def _time_parts(method: str) -> Record:
    recipe = find_recipe(f"procgen-{GAME}")
    settings = recipe.resolve(recipe.method(method))
    assert isinstance(settings, PPO)
    torch.cuda.reset_peak_memory_stats()
    agent = Agent((64, 64), actions=ACTIONS).cuda()
    agent.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learner = Learner(agent, settings, (64, 64))
    learner.prepare()
    row: Record = {f"{name}, ms": _time(graph, 24) for name, graph in learner._graphs.items()}
    try:
        halves = open_halves(GAME, TRAINING, count=settings.games, backend="procgen", seeds=(0,))
        scale = RewardScale(settings.games, settings.discount)
        row["rollout, ms"] = _time(lambda: play_rollout(learner, halves, scale), 3)
        updates = settings.epochs * settings.minibatches
        seconds = (row["rollout, ms"] + row["estimate, ms"] + updates * row["update, ms"]) / 1e3
        row["steps per second"] = settings.batch / seconds
    except ImportError as error:
        row["rollout, ms"] = str(error)
    row["peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
    learner.close()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return row


def _time(act: Callable[[], object], repeats: int) -> float:
    """Return the milliseconds that something takes, on average after a first time."""
    act()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        act()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / repeats
