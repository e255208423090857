"""Section 4.2 of the paper: does the effective degree show when a network turns from memorizing to generalizing?

Expected: ED rises while the network memorizes, peaks near the drop of the validation loss, and then falls; the
parameter norm rises monotonically, and sharpness decays early or fluctuates.
Found: without weight decay, no generalization in 100,000 steps. With it, ED is highest long before the drop, low at the
drop, and rises again afterwards.
Cost on one H200: 200 s of training per run if five share it. On one CPU core, 0.13 s per step.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import proxies
from effdeg.baselines import method
from effdeg_lab.core.recipe import Method, Recipe, Study, StudyFigure
from effdeg_lab.core.results import MethodRuns, Results
from effdeg_lab.core.runs import Job, Run
from effdeg_lab.core.settings import Settings, check_fit, setting, unnamed
from effdeg_lab.engine import Task, open_loop
from effdeg_lab.engine.evaluation import fit_trace
from effdeg_lab.engine.examples import Split
from effdeg_lab.models import Decoder
from effdeg_lab.show.figures import Figure, add_grid, open_figure
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge, judge_all

_WARM_UP, _BETAS = 10, (0.9, 0.98)  # Power et al.'s
_AT_ONCE = 8192  # equations per batch: enough to fill a GPU, and not too many for a small one

DEGREE = "validation_effective_degree"
"""The effective degree that is shown and judged: along paths between validation equations, because it is compared with
the validation loss. Along paths between training equations it takes the same course, within a third."""
_PROXIES = ("parameter_norm", "sharpness@0.05", "adaptive_sharpness@0.05")
_PROXY_NAMES = tuple(name.partition("@")[0] for name in _PROXIES)


@dataclass(frozen=True)
class Grokking(Settings):
    """The settings of one run; the defaults are the paper's or, where it is silent, those of Power et al. (2022)."""

    prime: int = setting(97, "what numbers are reduced by", smoke=11)
    fraction: float = setting(0.3, "share of all equations to train on; the rest validates", above=0)
    weight_decay: float = setting(0.0, "of AdamW", least=0)
    lr: float = setting(1e-3, "the learning rate, reached after ten steps and kept", above=0)
    # In float32, equations memorized so well that their loss rounds to 0 have no gradient (Prieto et al., 2025).
    softmax: Literal["float32", "float64"] = setting("float32", "precision of the training loss")
    batch: int = setting(512, "equations per step, at most half of the training equations", least=1, smoke=16)
    width: int = setting(128, "of the network", least=1, smoke=16)
    heads: int = setting(4, "of its attention", least=1, smoke=2)
    depth: int = setting(2, "its blocks", least=1, smoke=1)
    steps: int = setting(100_000, "training steps", scale=True, least=1, smoke=10)
    # Half of them evenly spaced in the logarithm of the step, half in the step.
    evaluations: int = unnamed(200, "evaluations during training", least=2, smoke=4)
    measure_paths: int = unnamed(200, "paths of a measurement", least=2, smoke=8)
    measure_nodes: int = unnamed(64, "nodes on each of them", smoke=16)
    measure_degree: int = unnamed(40, "the highest degree fitted", least=1, smoke=8)

    def check(self) -> None:
        check_fit(self.measure_nodes, self.measure_degree, prefix="measure_")
        if self.prime < 2 or not all(self.prime % divisor for divisor in range(2, math.isqrt(self.prime) + 1)):
            raise ValueError(f"prime={self.prime} is not a prime number: division modulo it is not always possible.")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width={self.width} cannot be divided among {self.heads} heads of equal, even width: use a multiple "
                f"of {2 * self.heads}."
            )
        if min(self.train_equations, self.equations - self.train_equations) < 2:
            raise ValueError(
                f"fraction={self.fraction!r} of {self.equations} equations leaves {self.train_equations} to train on: "
                "it must leave at least two to train on, and two to validate."
            )

    @property
    def equations(self) -> int:
        return self.prime * (self.prime - 1)

    @property
    def train_equations(self) -> int:
        return round(self.fraction * self.equations)

    @property
    def batch_size(self) -> int:
        """The number of equations per step: at most half of them, as in Power et al."""
        return min(self.batch, math.ceil(self.train_equations / 2))


def list_equations(prime: int) -> Split:
    """List all equations x / y = answer modulo a prime, for every x and y except zero.

    The tokens of an equation are x, the operation, y and the equals sign. Numbers are their own tokens; the next two
    are the operation and the equals sign.
    """
    x, y = torch.cartesian_prod(torch.arange(prime), torch.arange(1, prime)).unbind(1)
    inverses = torch.tensor([pow(number, -1, prime) for number in range(1, prime)])
    tokens = torch.stack([x, torch.full_like(x, prime), y, torch.full_like(x, prime + 1)], dim=1)
    return Split(tokens, x * inverses[y - 1] % prime)


def split_equations(settings: Grokking, device: torch.device) -> tuple[Split, Split]:
    equations, count = list_equations(settings.prime), settings.train_equations
    order = torch.randperm(len(equations), generator=torch.Generator().manual_seed(settings.seed))
    inputs, labels = equations.inputs[order].to(device), equations.labels[order].to(device)
    return Split(inputs[:count], labels[:count]), Split(inputs[count:], labels[count:])


def train(settings: Grokking, job: Job) -> None:
    # In float32 without TF32: without weight decay, the loss falls so low that precision matters.
    equations, validation = split_equations(settings, job.device)
    # Initialized on the CPU, so that a seed gives the same network on every device.
    torch.manual_seed(settings.seed)
    model = Decoder(prime=settings.prime, width=settings.width, heads=settings.heads, depth=settings.depth)
    model = model.to(job.device)
    task = Task(
        model=model,
        regularizer=method("plain"),
        batch=lambda rows: (equations.inputs[rows], equations.labels[rows]),
        examples=len(equations),
        batch_size=settings.batch_size,
        steps=settings.steps,
        optimizer=torch.optim.AdamW,
        options={"betas": _BETAS, "weight_decay": settings.weight_decay},
        rate=lambda step: settings.lr * min(1.0, (step + 1) / _WARM_UP),
        weight=lambda _: 0.0,
        evaluation_steps=frozenset(choose_evaluation_steps(settings.steps, settings.evaluations)),
        evaluate=lambda *_: evaluate(model, equations, validation, settings),
        describe=lambda entry: f"validation {entry['validation_accuracy']:.1%} · ED {entry[DEGREE]['value']:.3g}",
        loss=compute_precise_loss if settings.softmax == "float64" else cross_entropy,
        fused_on_cpu=True,
        frees_gpu=True,
    )
    with open_loop(task, job) as loop:
        loop.start()
        loop.train()
        summary = {name: value for name, value in loop.last.items() if name != "step"} | {
            "steps": settings.steps,
            "seconds": loop.seconds,
            "milliseconds_per_step": 1e3 * loop.seconds / settings.steps,
            "parameters": sum(each.numel() for each in model.parameters()),
        }
        loop.finish(summary)


def choose_evaluation_steps(steps: int, evaluations: int) -> list[int]:
    """Choose the steps to evaluate at, half of them evenly spaced in the logarithm of the step, half in the step."""
    # Memorizing takes hundreds of steps, while generalizing may take hundreds of thousands.
    half = max(2, evaluations // 2)
    rest = max(1, evaluations - half)
    by_factor = (round(math.exp(math.log(steps) * number / (half - 1))) for number in range(half))
    return sorted({*by_factor, *(round(steps * number / rest) for number in range(1, rest + 1))} - {0})


def compute_precise_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    """Return the mean cross entropy in float64; in float32, well memorized equations have zero loss and no gradient."""
    return cross_entropy(outputs.double(), answers)


def evaluate(model: nn.Module, equations: Split, validation: Split, settings: Grokking) -> dict[str, Any]:
    """Measure a network, always on the same equations and paths, and sharpness on the training equations."""
    found: dict[str, Any] = {}
    for name, part in (("train", equations), ("validation", validation)):
        found[f"{name}_accuracy"], found[f"{name}_loss"] = _score(model, part)
        if not math.isfinite(found[f"{name}_loss"]):
            raise ValueError(
                f"the {name} loss is no longer a number: training diverged. Try a smaller lr than {settings.lr:g}."
            )
        # Token ids cannot be interpolated, but their embeddings can.
        paths, nodes = settings.measure_paths, settings.measure_nodes
        trace = effdeg.trace(model, part.inputs, paths=paths, nodes=nodes, at="embed")
        found[f"{name}_effective_degree"] = fit_trace(trace, settings.measure_degree)
    data = (equations.inputs, equations.labels)
    measured = proxies.evaluate(model, data, compute_precise_loss, names=_PROXIES, batch_size=_AT_ONCE)
    return found | {name: measured.results[proxy].value for name, proxy in zip(_PROXY_NAMES, _PROXIES, strict=True)}


@torch.no_grad()
def _score(model: nn.Module, equations: Split) -> tuple[float, float]:
    right, loss = 0.0, 0.0
    for tokens, answers in equations.chunks(_AT_ONCE):
        logits = model(tokens)
        right += float((logits.argmax(1) == answers).sum())
        loss += float(compute_precise_loss(logits, answers)) * len(answers)
    return right / len(equations), loss / len(equations)


class Course:
    """The evaluations of a run, and its moments: indices of evaluations, None for those that were not reached."""

    def __init__(self, run: Run) -> None:
        self.run, self._found = run, pd.json_normalize(run.metrics)
        self.steps, self.degrees, self.errors = self["step"], self[f"{DEGREE}.value"], self[f"{DEGREE}.stderr"]
        self.memorized = self.reaches("train_accuracy", 0.99)
        start, end = (self.reaches("validation_accuracy", share) for share in (0.1, 0.9))
        self.transition = None if start is None or end is None else (start, end)
        self.loss_peak, self.drop = None, None
        if end is not None:
            # The drop is where the loss has halved since its maximum by the end of the transition; later are spikes.
            loss = self["validation_loss"]
            self.loss_peak = int(loss[: end + 1].argmax())
            later = range(self.loss_peak, len(loss))
            self.drop = next((at for at in later if loss[at] <= loss[self.loss_peak] / 2), None)
        self.peak = int(self.degrees.argmax())
        self.peak_before_drop = None if self.drop is None else int(self.degrees[: self.drop + 1].argmax())
        # The end is the evaluation with the highest value among the last five: training with Adam has spikes of the
        # loss, which briefly lower the effective degree and must not count as a fall.
        first = max(0, len(self.steps) - 5)
        self.end = first + int(self.degrees[first:].argmax())

    def __getitem__(self, name: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
        return self._found[name].to_numpy(dtype=float)

    def reaches(self, name: str, least: float) -> int | None:
        return next((at for at, value in enumerate(self[name]) if value >= least), None)


def judge_course(course: Course) -> Verdict | None:
    """Judge whether ED rises while a network memorizes, peaks near the drop, and falls; None without a drop."""
    if course.drop is None:
        return None
    values, errors, peak = course.degrees, course.errors, course.peak

    # Two standard errors, treated as independent: conservative, as all evaluations use the same paths.
    def compare(quantity: str, one: int, other: int) -> Verdict:
        difference, margin = values[one] - values[other], 2 * math.hypot(errors[one], errors[other])
        return judge(quantity, float(difference), (difference - margin, difference + margin), above=0)

    # The peak may be at any evaluation that is lower by no more than the error bars.
    highest = values[peak] - values <= 2 * np.hypot(errors, errors[peak])
    leads = course.steps / course.steps[course.drop]
    memorized = course.drop if course.memorized is None else min(course.memorized, course.drop)
    return judge_all([
        compare("rise of ED until the network has memorized", memorized, 0),
        judge(
            "step of the highest ED, as a multiple of the step at which the validation loss has halved",
            float(leads[peak]),
            (float(leads[highest].min()), float(leads[highest].max())),
            above=math.nextafter(0.5, 0),
            below=math.nextafter(2, 3),
        ),
        compare("fall of ED from its highest to the end", peak, course.end),
    ])


def judge_runs(runs: Iterable[Run]) -> Verdict:
    """Judge the claim on the seeds whose validation loss drops; not decided if there are none or they disagree."""
    found = [verdict for run in runs if (verdict := judge_course(Course(run))) is not None]
    if not found:
        return Verdict("not decided", "runs in the paper's setting whose validation loss drops", 0.0)
    verdict = judge_all(found)
    return verdict if len({each.word for each in found}) == 1 else replace(verdict, word="not decided")


Moment = Callable[[Course], int | None]
_STEPS: dict[str, Moment] = {
    "99% in training": lambda course: course.memorized,
    "50% in validation": lambda course: course.reaches("validation_accuracy", 0.5),
    "99% in validation": lambda course: course.reaches("validation_accuracy", 0.99),
    "loss highest": lambda course: course.loss_peak,
    "loss halved": lambda course: course.drop,
    "ED highest until then": lambda course: course.peak_before_drop,
    "ED highest": lambda course: course.peak,
}
_DEGREES: dict[str, Moment] = {
    "at first": lambda _: 0,
    "memorized": lambda course: course.memorized,
    "highest until the drop": lambda course: course.peak_before_drop,
    "at the drop": lambda course: course.drop,
    "highest": lambda course: course.peak,
    "at the end": lambda course: course.end,
}


class GrokkingStudy(Study):
    """Follows measures as networks go from memorizing to generalizing; the first method is the paper's setting."""

    def claim(self, results: Results) -> Verdict:
        return judge_runs(results.methods[0].runs)

    def tables(self, results: Results) -> list[Table]:
        steps, degrees = [], []
        for each in results.methods:
            title, courses = each.method.title, [Course(run) for run in each.runs]
            found = [_format_steps(courses, moment) for moment in _STEPS.values()]
            steps.append((title, *(found if courses else (each.state, *[NOTHING] * (len(_STEPS) - 1)))))
            degrees.append((title, *(_format_degrees(courses, moment) for moment in _DEGREES.values())))
        steps_notes = (
            "Loss: that of validation; its drop is where it has halved since its highest before 90% in validation.",
            "With several seeds: the least and the largest.",
        )
        degrees_notes = (
            "Along paths between validation equations, ± the standard error of the measurement.",
            "At the end: the highest of the last five evaluations, since a spike of the loss lowers ED for a moment.",
        )
        return [
            Table(f"After how many of {results.scale['steps']:,} steps", ("", *_STEPS), tuple(steps), steps_notes),
            Table("Effective degree", ("", *_DEGREES), tuple(degrees), degrees_notes),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        found = []
        for name, decays in (("with-decay", True), ("without-decay", False)):
            methods = [each for each in results.done if (each.runs[0].settings["weight_decay"] > 0) is decays]
            caption = (
                f"Loss and measures along training {name.replace('-', ' weight ')}; thick: the first seed. Dotted: 99% "
                "of the training equations are answered correctly; shaded: validation accuracy goes from 10% to 90%."
            )
            found += [StudyFigure(name, caption, partial(draw_courses, methods))] if methods else []
        return found

    def headline(self, run: Run) -> str:
        course = Course(run)
        return (
            f"validation accuracy up to {course['validation_accuracy'].max():.2%}, highest ED "
            f"{course.degrees[course.peak]:.3f} at step {course.steps[course.peak]:,.0f}"
        )


def _format_steps(courses: Sequence[Course], moment: Moment) -> str:
    """Write the smallest and the largest step of a moment, and the number of seeds if not all reached it."""
    found = sorted(course.steps[at] for course in courses if (at := moment(course)) is not None)
    if not found:
        return "never"
    some = "" if len(found) == len(courses) else f" ({len(found)} of {len(courses)})"
    return " to ".join(dict.fromkeys(f"{step:,.0f}" for step in (found[0], found[-1]))) + some


def _format_degrees(courses: Sequence[Course], moment: Moment) -> str:
    found = [(course.degrees[at], course.errors[at]) for course in courses if (at := moment(course)) is not None]
    if not found:
        return NOTHING
    values, errors = zip(*found, strict=True)
    return f"{np.mean(values):.3f} ± {math.hypot(*errors) / len(errors):.3f}"


def draw_courses(methods: Sequence[MethodRuns], theme: str) -> Figure:
    """Plot training, with a column for each method, its first seed thick and the others thin."""
    with open_figure(theme, (1.0 + 3.2 * len(methods), 8.6)) as (colors, figure):
        grid = figure.subplots(5, len(methods), sharex="col", squeeze=False, height_ratios=[1.3, 1.3, 1, 1, 1])
        for column, each in zip(grid.T, methods, strict=True):
            # Not the mean over seeds: they generalize at different steps, so it would hide their peaks.
            for run in reversed(each.runs):  # the first seed on top
                course = Course(run)
                style: dict[str, Any] = {"lw": 0.6, "alpha": 0.6} if run is not each.runs[0] else {"lw": 1.5}
                for name, color in (("train", colors.simple), ("validation", colors.complex)):
                    # Differences among smaller losses do not matter here.
                    column[0].plot(course.steps, course[f"{name}_loss"].clip(1e-4), color=color, **style)
                for axes, name in zip(column[1:], (f"{DEGREE}.value", *_PROXY_NAMES), strict=True):
                    axes.plot(course.steps, course[name], color=colors.ink, **style)
            _mark(column, course, colors)
            column[0].set_title(each.method.title, fontweight="bold")
            column[-1].set_xlabel("step")
        for axes, name in zip(grid[:, 0], ("loss", "effective degree", *_PROXY_NAMES), strict=True):
            axes.set_ylabel(name.replace("_", " "))
        figure.align_ylabels(grid[:, 0])
    return figure


def _mark(column: Any, course: Course, colors: Any) -> None:
    """Set up the axes, and mark where a run memorized and generalized, and its highest effective degree."""
    top, degree, *_ = column
    steps, values, peak = course.steps, course.degrees, course.peak
    margin = stats.t.ppf(0.975, int(course.run.settings["measure_paths"]) - 1) * course.errors
    degree.fill_between(steps, values - margin, values + margin, color=colors.ink, alpha=0.2, lw=0)
    degree.plot(steps[peak], values[peak], "o", color=colors.complex, ms=5, zorder=4, clip_on=False)
    normalized = degree.twinx()
    normalized.plot(steps, course[f"{DEGREE}.normalized"], color=colors.simple, lw=1, ls="--", alpha=0.8)
    normalized.set_ylim(bottom=0)
    normalized.tick_params(axis="y", colors=colors.simple, length=0, labelsize=7)
    degree.set_zorder(normalized.get_zorder() + 1)  # in front of it
    degree.patch.set_visible(False)
    top.set_yscale("log")
    for axes, height, text, color in (
        (top, 0.16, "validation", colors.complex),
        (top, 0.05, "training", colors.simple),
        (degree, 0.9, "raw", colors.ink),
        (degree, 0.79, "normalized", colors.simple),
    ):
        axes.text(0.03, height, text, color=color, fontsize=8, transform=axes.transAxes)
    for axes in column:
        # In the first ten steps, during warm-up, hardly anything changes.
        axes.set(xscale="log", xlim=(10, max(20, float(steps[-1]))))
        add_grid(axes, colors)
        if axes is not top:
            axes.set_ylim(bottom=0)
        if course.memorized is not None:
            axes.axvline(steps[course.memorized], color=colors.simple, ls=":", lw=1)
        if course.transition is not None:
            axes.axvspan(*steps[list(course.transition)], color=colors.complex, alpha=0.25, lw=0)


RECIPES = (
    Recipe(
        name="grokking",
        title="The effective degree while a network groks modular division",
        paper="Figure 4, section 4.2, appendix D.2",
        expects=(
            "ED rises while the network memorizes, peaks near the drop of the validation loss, and then falls. The "
            "parameter norm rises monotonically; sharpness and adaptive sharpness decay early or fluctuate."
        ),
        cost="4 min per run on one H200 that five runs share",
        settings=Grokking(),
        run=train,
        methods=(
            Method("paper", "30%, no weight decay"),
            Method("precise", "30%, no decay, float64 softmax", {"softmax": "float64"}),
            Method("half", "50%, no weight decay", {"fraction": 0.5}),
            Method("decay", "30%, weight decay 1", {"weight_decay": 1.0}),
            Method("half-decay", "50%, weight decay 1", {"fraction": 0.5, "weight_decay": 1.0}),
        ),
        departs=(
            "The paper states the task, the training fraction, the optimizer, its learning rate and weight decay, and "
            "the settings of ED; everything else is as in Power et al. (2022), with three exceptions: incomplete "
            "batches are left out, the network does not predict the end of the line after the answer, and it chooses "
            "among numbers only. The paper does not state the number of steps; Power et al. need close to a million "
            "for 50% without weight decay, and find that weight decay 1 generalizes from the least data. The paper "
            "does not say which equations its paths connect: here validation equations. Sharpness is that of the loss "
            "on all training equations, in float64."
        ),
        study=GrokkingStudy(),
    ),
)
