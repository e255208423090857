"""Soups of a sweep: means of the models that tuned a method, chosen by the training images that they held out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import effdeg_lab.engine.evaluation as evaluation
from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.results import Selection
from effdeg_lab.core.runs import Run
from effdeg_lab.data import load
from effdeg_lab.engine import Training
from effdeg_lab.engine.classify import make_network
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.finetuning import find_more_shifts
from effdeg_lab.engine.interpolation import Weights, greedy_soup, uniform_soup
from effdeg_lab.engine.streaming import make_examples


def measure_soups(
    recipe: Recipe,
    runs: Sequence[Run],
    data: Path | None,
    device: torch.device,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Test the best model, the uniform soup and the greedy soup of each method's tuning runs.

    Those with kept weights are used, with the settings in ``changes``. The best model and the greedy soup are chosen on
    the held-out training images; ``rows`` have the accuracy on these, on the test set and under shifts.
    """
    changes, rows = changes or {}, []
    for method in recipe.methods:
        tuned = Selection(recipe, runs, changes).list_runs(method, tuning=True)
        kept = [run for run in tuned if run.finished and _weights(run).is_file()]
        rows += _measure(method, kept, data, device) if len(kept) > 1 else []
    if not rows:
        raise ValueError(
            f"there are no soups to make of {recipe.name}: no method has two finished runs that tuned it and kept "
            "their weights (weights.pt in the folder of a run). A sweep without --no-tune makes them; name the "
            "settings that it changed with --set."
        )
    asked = recipe.settings.change(changes).to_dict()
    free = {"seed", *recipe.settings.scale_names(), *recipe.tuning}
    return {"recipe": recipe.name, "changes": {name: asked[name] for name in changes if name not in free}, "rows": rows}


def _measure(method: Method, runs: Sequence[Run], data: Path | None, device: torch.device) -> list[dict[str, Any]]:
    settings = Training(**Training.complete(runs[0].settings))
    settings = settings.change({"start_from": "pretrained"})  # all weights are replaced: no probe is needed
    examples = load(settings.data, data, settings.pixels)
    held_out = make_examples(examples, settings, device)
    final = settings.change({"held_out": 0})
    tested = make_examples(examples, final, device)
    tested.shifted |= find_more_shifts(final, tested.classes, data)
    network = make_network(settings, held_out, device, data)
    states = {run.file.stem: torch.load(_weights(run), map_location=device, weights_only=True) for run in runs}

    def score(state: Weights, given: DeviceExamples = held_out) -> float:
        network.load_state_dict(dict(state))
        return evaluation.score(network, given, given.test, settings.precision)[0]

    greedy = greedy_soup(states, score)
    best = greedy.names[0]
    rows = []
    for kind, state, names in (
        ("best model", states[best], [best]),
        ("uniform soup", uniform_soup(states.values()), list(states)),
        ("greedy soup", greedy.state, list(greedy.names)),
    ):
        row = {"method": method.title, "kind": kind, "models": len(names), "names": names}
        row |= {"held_out_accuracy": score(state), "test_accuracy": score(state, tested)}
        corrupted = evaluation.evaluate_corrupted(network, tested, settings)
        rows.append(row | evaluation.evaluate_shifted(network, tested, corrupted.get("corrupted_accuracy"), settings))
    return rows


def _weights(run: Run) -> Path:
    return run.file.with_suffix("") / "weights.pt"
