"""Run a recipe: first its tuning runs, then the final ones; finished runs are skipped."""

import signal
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch

from effdeg_lab.core.progress import progress_bar
from effdeg_lab.core.recipe import Method, Recipe, find_recipe
from effdeg_lab.core.results import Selection
from effdeg_lab.core.runs import Run, RunFolder, StoppedError
from effdeg_lab.core.settings import Settings
from effdeg_lab.core.signals import catch_signals, list_stop_signals
from effdeg_lab.core.workers import TICK, Ended, Planned, WorkerPool, Workplace

_SAME_TIME = 0.05  # training times count as equal if they differ by less than this fraction


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    methods: Sequence[str] = ()  # all if empty
    seeds: Sequence[int] = ()  # the recipe's if empty
    changes: Mapping[str, Any] = field(default_factory=dict)  # for all runs; they override the recipe and tuning
    tune: bool = True  # whether to run what is missing of tuning; finished tuning is used in any case
    equal_time: str | None = None  # the method whose training time all others get, too

    def check(self, data: Path | None) -> None:
        """Raise if the methods, settings or tuning are wrong, or if the data folder lacks a data set."""
        planned = [*self.plan_tuning(), *self.plan_final([])]
        if self.equal_time is not None:
            self.recipe.method(self.equal_time)
            option = f"--equal-time {self.equal_time}: "
            # The epochs of agents are not of scale: they are passes over one rollout.
            if "epochs" not in self.recipe.settings.scale_names():
                raise ValueError(f"{option}runs of {self.recipe.name} have no setting epochs that could be raised.")
            if self.methods and self.equal_time not in self.methods:
                raise ValueError(f"{option}it is not among the methods of this sweep; add --method {self.equal_time}.")
        self.recipe.check_data([each.settings for each in planned], data)

    def plan_tuning(self) -> list[Planned]:
        """List the tuning runs, with one seed each; a method is not tuned if the user sets one of its tuned values."""
        changes = self._get_tuning()
        return _unique(
            Planned(method.name, self.recipe.resolve(method, {**changes, **candidate}), "tuning")
            for method in self._get_methods()
            if self.tune
            for candidate in self._get_candidates(method)
        )

    def plan_final(self, runs: Sequence[Run], without: Collection[str] = ()) -> list[Planned]:
        """List the final runs: methods × points × seeds, with the values that did best in tuning."""
        planned = []
        for method in (each for each in self._get_methods() if each.name not in without):
            tuned, _ = self.get_tuned(method, runs)
            for point, seed in product(self.recipe.points(), self.seeds or self.recipe.seeds):
                settings = self.recipe.resolve(method, {**point, "seed": seed, **tuned, **self.changes})
                planned.append(Planned(method.name, settings, "final"))
        return _unique(planned)

    def explain_untuned(self, runs: Sequence[Run]) -> dict[str, str]:
        """Return a reason for each method that cannot be run because none of its tuning runs has finished, by name."""
        untuned = {}
        for method in self._get_methods() if self.tune else []:
            candidates = self._get_candidates(method)
            if candidates and not self.get_tuned(method, runs)[0]:
                given = " ".join(f"--set {key}=VALUE" for key in method.tune)
                untuned[method.name] = (
                    f"not run, as none of its {len(candidates)} tuning runs finished. Fix the cause and start the "
                    f"sweep again, or run it untuned: with {given}, or with the recipe's own values (--no-tune)."
                )
        return untuned

    def plan_equal_time(self, finals: Sequence[Planned], folder: RunFolder) -> list[Planned]:
        """List the runs that give every method the training time of one, with epochs from the times of finished runs.

        Times are those of the smallest seed at each point, so that all seeds train for as long. Runs that already take
        that time are left out; warn of methods whose time is not known.
        """

        def get_key(method: str, settings: Settings) -> tuple[Any, ...]:
            return method, *(getattr(settings, key) for key in self.recipe.axes)

        seconds: dict[tuple[Any, ...], float | None] = {}
        known = zip(finals, folder.find_all([each.settings for each in finals]), strict=True)
        for each, run in sorted(known, key=lambda pair: pair[0].settings.seed):
            summary = run.summary if run and not run.environment.get("shared") else None  # a shared GPU is slower
            seconds.setdefault(get_key(each.method, each.settings), (summary or {}).get("seconds"))
        planned = []
        for each in finals:
            own = seconds[get_key(each.method, each.settings)]
            given = seconds.get(get_key(str(self.equal_time), each.settings))
            if own and given:
                before = each.settings.to_dict()["epochs"]
                epochs = max(1, round(before * given / own))
                if abs(given / own - 1) > _SAME_TIME and epochs != before:
                    planned.append(Planned(each.method, each.settings.change({"epochs": epochs}), "equal time"))
            elif each.method != self.equal_time:
                text = f"{each.method} has no run at equal time: its training time or {self.equal_time}'s is not known."
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return _unique(planned)

    def get_tuned(self, method: Method, runs: Sequence[Run]) -> tuple[dict[str, Any], int]:
        """Return the values that did best in tuning, and how many were tried; none if the user sets one of them.

        If this sweep does not tune, any number of held-out examples counts.
        """
        if not self._get_candidates(method):
            return {}, 0
        changes = self._get_tuning()
        held_out = changes["held_out"] if self.tune else None
        choices = Selection(self.recipe, runs, changes).list_choices(method, held_out)
        return (dict(choices[0].changes), len(choices[0].tried)) if choices else ({}, 0)

    def _get_methods(self) -> list[Method]:
        return [self.recipe.method(name) for name in dict.fromkeys(self.methods)] or list(self.recipe.methods)

    def _get_candidates(self, method: Method) -> list[dict[str, Any]]:
        """List the values to try for a method; none if the user sets one of them."""
        return [] if method.tune.keys() & self.changes.keys() else self.recipe.candidates(method)

    def _get_tuning(self) -> dict[str, Any]:
        return {**self.changes, **self.recipe.tuning}


def sweep(
    plan: Plan,
    *,
    runs: RunFolder,
    device: torch.device,
    data: Path | None = None,
    processes: int = 1,
    together: int = 1,
    any_code: bool = False,
) -> list[Ended]:
    """Carry out all planned runs that are not finished yet, and return how each ended.

    A method is skipped if none of its tuning runs finishes. SIGTERM, SIGHUP and Ctrl-C make every run save and stop;
    except after Ctrl-C, :class:`StoppedError` is raised. If another process is working on a run, the sweep waits for
    it. Up to ``together`` runs of one kind are trained in
    one step. Finished runs of other code than the recipe's are refused unless ``any_code``.
    """
    if processes < 1:
        raise ValueError(f"--processes {processes} is too small: it must be at least 1.")
    _check_together(plan, together)
    find_recipe(plan.recipe.name)
    plan.check(data)
    runs.lock("names")  # raises if the folder cannot be written to
    place = Workplace(plan.recipe.name, runs.folder.absolute(), data.absolute() if data else None, str(device))
    pool = WorkerPool(place, processes)
    outcome: list[Ended] = []

    def carry_out(planned: Sequence[Planned], title: str) -> None:
        """Carry out the runs that are not finished yet, until a signal arrives."""
        known = zip(planned, runs.find_all([each.settings for each in planned]), strict=True)
        begun = [(each, run) for each, run in known if run]
        check_same([(each.settings, run) for each, run in begun], plan.recipe, data, any_code=any_code)
        before = [each for each, run in begun if run.finished]
        outcome.extend(Ended(each, "finished before") for each in before)
        due = [each for each in planned if each not in before]
        with progress_bar(f"{plan.recipe.name}, {title}", len(planned), enabled=bool(planned)) as update:
            while due and not received:
                for ended in pool.carry_out(_bundle(due, together)):
                    for each in ended:
                        if each.ending != "busy":
                            due.remove(each.planned)
                            outcome.append(each)
                            print(_describe(plan.recipe, each), flush=True)
                    update(len(planned) - len(due))
                    if received:
                        break
                if due and not received:  # other processes are working on the rest
                    time.sleep(TICK)

    with catch_signals(signal.SIGINT, *list_stop_signals()) as received, closing(pool):
        carry_out(plan.plan_tuning(), "tuning")
        known = runs.read(brief=True)
        untuned = plan.explain_untuned(known)
        skipped = [each for each in plan.plan_final(known) if each.method in untuned]
        outcome.extend(Ended(each, "not run", untuned[each.method]) for each in skipped)
        finals = plan.plan_final(known, without=untuned)
        carry_out(finals, "runs")
        if plan.equal_time is not None and not received:
            carry_out(plan.plan_equal_time(finals, runs), "equal time")
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    if received:
        raise StoppedError
    return outcome


def check_same(
    known: Sequence[tuple[Settings, Run]], recipe: Recipe, folder: Path | None, *, any_code: bool = False
) -> None:
    """Raise if a finished run was made with data other than those in this folder, or by other code than the recipe's.

    Warn of a run that would continue from a checkpoint of other code. What is not known is taken to be the same.
    """
    data: dict[tuple[Any, Any], str | None] = {}
    other = [] if any_code else [run for _, run in known if run.code is not None and run.code != recipe.code]
    finished = [run for run in other if run.finished]
    if finished:
        more = f" and {len(finished) - 1} more" if len(finished) > 1 else ""
        raise ValueError(
            f"{finished[0].file}{more} came from other code than {recipe.name} has now, so the result may be another. "
            "To use it all the same, add --any-code; to run it again, delete it or use effdeg-lab run --again; to keep "
            "both, give another --runs folder."
        )
    for run in other:
        if [*run.file.with_suffix("").glob("checkpoint-*.pt")]:
            text = f"{run.file} continues from a checkpoint of other code than {recipe.name} has now."
            warnings.warn(f"{text} To start anew, use effdeg-lab run --again.", RuntimeWarning, stacklevel=2)
    for settings, run in known:
        key, made_with = (run.settings.get("data"), run.settings.get("pixels")), run.environment.get("data")
        if not run.finished or made_with is None:
            continue
        if key not in data:
            data[key] = settings.identify_data(folder)
        if data[key] not in (None, made_with):
            raise ValueError(
                f"{run.file} was made with other data: give its data folder, another --runs folder, or delete it to "
                "run it again."
            )


def _check_together(plan: Plan, together: int) -> None:
    if together < 1:
        raise ValueError(f"--together {together} is too small: it must be at least 1.")
    if together > 1 and plan.recipe.run_stacked is None:
        raise ValueError(f"--together {together}: runs of {plan.recipe.name} are trained one by one; leave it out.")
    if together > 1 and plan.equal_time is not None:
        raise ValueError(
            f"--together {together} and --equal-time {plan.equal_time} cannot be combined: runs that are trained "
            "together have no times of their own."
        )


def _bundle(planned: Iterable[Planned], together: int) -> list[list[Planned]]:
    """Group runs that can be trained together, up to ``together`` in each, in order of appearance."""
    bundles: list[list[Planned]] = []
    last: dict[str, list[Planned]] = {}  # the last bundle of each kind
    for each in planned:
        key = each.settings.stack_key() or each.settings.hash
        if len(last.get(key, ())) in {0, together}:
            last[key] = []
            bundles.append(last[key])
        last[key].append(each)
    return bundles


def _describe(recipe: Recipe, ended: Ended) -> str:
    planned, method = ended.planned, recipe.method(ended.planned.method)
    title = method.title if planned.purpose == "final" else f"{method.title} ({planned.purpose})"
    shown = [f"{key} {getattr(planned.settings, key)}" for key in (*recipe.axes, *method.tune, "seed")]
    return f"{', '.join([title, *shown])}: {', '.join(dict.fromkeys(filter(None, ended[1:])))}"


def _unique(planned: Iterable[Planned]) -> list[Planned]:
    unique: dict[str, Planned] = {}
    for each in planned:
        unique.setdefault(each.settings.hash, each)
    return list(unique.values())
