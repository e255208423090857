"""An experiment of milliseconds: a random walk, which saves at every step all it needs to go on exactly."""

import os
import select
import signal
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from effdeg.lab import registry
from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.store import Store

# After this epoch a run waits to be ended, if TOY_HOLD names a pipe.
HELD_AT = 4


@dataclass(frozen=True)
class Toy:
    method: str = "plain"
    weight: float | None = None
    lr: float = 0.1
    held_out: int = 0
    names: tuple[str, ...] = ()
    seed: int = field(default=0, metadata={"scale": True})
    epochs: int = field(default=4, metadata={"scale": True})


def train(settings, task):
    torch.manual_seed(settings.seed)
    state = task.run.begin({"device": str(task.device), "process": os.getpid()})
    state = state or {"epoch": 0, "walk": torch.zeros(()), "random": torch.get_rng_state()}
    print(f"beginning at epoch {state['epoch']}")
    if settings.method == "broken" and not healed(task.run.folder):
        raise ValueError("it is broken\nbeyond repair")
    if settings.method == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    torch.set_rng_state(state["random"])
    walk = state["walk"]
    for epoch in range(state["epoch"], settings.epochs):
        walk = walk + settings.lr * torch.randn(())
        task.run.log({"epoch": epoch + 1, "walk": walk.item(), "test_accuracy": accuracy(settings)})
        task.run.save({"epoch": epoch + 1, "walk": walk, "random": torch.get_rng_state()})
        if epoch + 1 == HELD_AT and "TOY_HOLD" in os.environ:
            hold(os.environ["TOY_HOLD"])
    summary = {"test_accuracy": accuracy(settings), "walk": walk.item(), "seconds": 1.5, "epochs": settings.epochs}
    task.run.finish(summary, {"walk": walk})


def hold(pipe):
    """Tell whoever reads the pipe that this point is reached, and wait to be ended."""
    Path(pipe).write_text("here")
    signal.pause()


def wait_for_hold(pipe):
    """Wait for a run to come to where it holds; the deadline is for one that never does."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ready, _, _ = select.select([reader], [], [], 300)
    os.close(reader)
    assert ready


def accuracy(settings):
    """Best at weight 7 on held-out examples, at weight 20 on others, which must not decide."""
    best = 7 if settings.held_out else 20
    return 0.9 - abs((settings.weight or 0) - best) / 100


def healed(run):
    return (run.parent / "healed").exists()


RECIPE = Recipe(
    name="toy",
    title="A random walk",
    paper="none",
    expects="nothing",
    cost="nothing",
    settings=Toy(),
    train=train,
    rows=(
        Row("plain", "Plain"),
        Row("ed", "ED", {"method": "ed", "weight": 2.0}, strengths={"weight": (2.0, 7.0, 20.0)}),
        Row("broken", "Broken", {"method": "broken"}),
        Row("killed", "Killed", {"method": "killed"}),
    ),
    seeds=(0, 1),
    tuning={"held_out": 100, "epochs": 2},
)


@cache
def recipe():
    """The recipe, by a name that other processes find it by."""
    return registry.find_recipe(f"{__name__}:RECIPE")


def finish(store: Store | Path, settings, **summary):
    """Put a finished run into a store without training it."""
    run = (store if isinstance(store, Store) else Store(store)).run(settings)
    run.begin({"device": "none"})
    run.finish({"test_accuracy": accuracy(settings), "epochs": settings.epochs} | summary)
    return run
