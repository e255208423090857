"""An experiment of milliseconds: a random walk, which saves at every step all that it needs to continue exactly."""

import os
import select
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch

from effdeg_lab import Job, Method, Recipe, Reported, RunFolder, Settings, Study
from effdeg_lab.core.settings import setting

HELD_AT = 4  # after this epoch a run waits to be ended, if TOY_HOLD names a pipe, into which it writes


@dataclass(frozen=True)
class Toy(Settings):
    regularizer: str = "plain"
    weight: float | None = None
    lr: float = 0.1
    held_out: int = 0
    names: tuple[str, ...] = ()
    epochs: int = setting(4, scale=True)
    evaluate_every: int = setting(1, scale=True, named=False)


@dataclass(frozen=True)
class ToyWithData(Toy):
    data: str = "cifar10"


def run(settings, job):
    state = job.start(process=os.getpid())
    state = state or {"epoch": 0, "walk": torch.zeros(()), "random": torch.get_rng_state()}
    print(f"starting at epoch {state['epoch']}")
    if settings.regularizer == "broken" and not (job.runs.folder / "healed").exists():
        raise ValueError("it is broken\nbeyond repair")
    if settings.regularizer == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    torch.set_rng_state(state["random"])
    for epoch in range(state["epoch"], settings.epochs):
        state["walk"] = state["walk"] + settings.lr * torch.randn(())
        state |= {"epoch": epoch + 1, "random": torch.get_rng_state()}
        job.log({"epoch": epoch + 1, "walk": state["walk"].item(), "test_accuracy": score(settings)})
        if epoch + 1 < HELD_AT:
            job.save(state)
        if epoch + 1 == HELD_AT and "TOY_HOLD" in os.environ:
            Path(os.environ["TOY_HOLD"]).write_text("here")
            while not job.asked_to_stop():
                select.select([], [], [], 0.01)
        job.stop_if_asked(state.copy)
    summary = {"test_accuracy": score(settings), "walk": state["walk"].item(), "seconds": 1.5}
    job.finish(summary, {"walk": state["walk"]})


def run_shared(settings, job):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    if torch.distributed.get_rank() == 0:
        job.start()
        job.finish({"total": total.item()})


def wait_for_hold(pipe):
    """Wait until a run holds; the deadline is for one that never does."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ready, _, _ = select.select([reader], [], [], 300)
    os.close(reader)
    assert ready


@contextmanager
def signal_when_held(folder, number):
    """Send this process a signal when a run in the block holds."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)

    def send():
        wait_for_hold(pipe)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    with patch.dict(os.environ, TOY_HOLD=str(pipe)):
        thread.start()
        yield
        thread.join()


def score(settings):
    """Best at weight 7 on held-out examples, at weight 20 on others, which must not decide."""
    best = 7 if settings.held_out else 20
    return 0.9 - abs((settings.weight or 0) - best) / 100


RECIPE = Recipe(
    name="toy",
    title="A random walk",
    paper="none",
    expects="nothing",
    cost="nothing",
    settings=Toy(),
    run=run,
    study=Study(),
    methods=(
        Method("plain", "Plain"),
        Method("ed", "ED", {"regularizer": "ed", "weight": 2.0}, Reported(90.18, 0.14), {"weight": (2.0, 7.0, 20.0)}),
        Method("broken", "Broken", {"regularizer": "broken"}),
        Method("killed", "Killed", {"regularizer": "killed"}),
    ),
    seeds=(0, 1),
    tuning={"held_out": 100, "epochs": 2},
)
WITH_DATA = replace(RECIPE, settings=ToyWithData())
# A method that cannot be tuned, and one whose settings are those that it would have untuned.
BROKEN = {"regularizer": "broken", "weight": 2.0}
UNTUNED = replace(
    RECIPE,
    methods=(
        Method("plain", "Plain"),
        Method("tuned", "Tuned", BROKEN, tune={"weight": (2.0, 7.0)}),
        Method("fixed", "Fixed", BROKEN),
    ),
)
SHARED = replace(RECIPE, run=run_shared)
NAME = "toys:RECIPE"


def make_job(folder, settings=RECIPE.settings, method="plain", recipe="toy", **options):
    runs = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    base = RECIPE.resolve(RECIPE.method(method))
    return Job(settings, recipe, method, base, runs, torch.device("cpu"), **options)


def finish(folder, settings, method="plain", **summary):
    """Put a finished run into a folder without carrying it out."""
    job = make_job(folder, settings, method)
    job.start()
    job.finish({"test_accuracy": score(settings)} | summary)
    return job
