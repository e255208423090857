"""Grokking: a network memorizes a part of modular arithmetic and, much later, generalizes (section 4.2)."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import proxies
from effdeg.baselines import method
from effdeg_lab.engine import StepOptions, Task, open_loop
from effdeg_lab.engine.evaluation import fit_trace
from effdeg_lab.engine.examples import Split
from effdeg_lab.engine.settings import check_fit, check_least, check_positive
from effdeg_lab.models import Decoder
from effdeg_lab.results import MethodRuns, Results
from effdeg_lab.runs import Job, Run
from effdeg_lab.settings import SCALE, Settings
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from effdeg.plots import Theme

Operation = Literal["add", "subtract", "multiply", "divide", "quadratic", "by-parity"]
Array = np.ndarray[Any, np.dtype[np.float64]]

# Power et al.'s.
_WARM_UP, _BETAS = 10, (0.9, 0.98)
# Token ids cannot be interpolated: paths live where they have become vectors.
_PATHS_AT = "embed"
# Enough equations at once to fill a GPU, with room left on a small one.
_AT_ONCE = 8192

DEGREE = "validation_effective_degree"
"""The effective degree that is shown and judged: along paths between equations that are not trained on, as the loss
that it is compared with is theirs. Along paths between the others it takes the same course, within a third."""
NORMALIZED = "normalized_effective_degree"
"""The normalized effective degree of the logits, along the same paths."""
OTHERS = {"parameter_norm": "parameter norm", "sharpness": "sharpness", "adaptive_sharpness": "adaptive sharpness"}
"""The measures that the paper compares with the effective degree."""
_PROXIES = {
    "parameter_norm": "parameter_norm",
    "sharpness": "sharpness@0.05",
    "adaptive_sharpness": "adaptive_sharpness@0.05",
}


@dataclass(frozen=True)
class Grokking(Settings):
    """The settings of one run; the defaults are the paper's, and where it is silent those of Power et al. (2022).

    Attributes:
        operation: What is done with two numbers modulo the prime: ``add``, ``subtract``, ``multiply``, ``divide``,
            ``quadratic`` (x² + xy + y²), or ``by-parity`` (x / y if y is odd, else x - y).
        prime: The modulus.
        fraction: The share of all equations that is trained on; the rest validates.
        weight_decay: AdamW's weight decay.
        lr: The learning rate, reached after ten steps and kept.
        softmax: The precision of the softmax in the loss that is trained. In ``float32``, what is memorized so well
            that its loss rounds to 0 has no gradient any more (Prieto et al., 2025).
        batch: Split per step, at most half of those that are trained on.
        width: The width of the transformer.
        heads: The heads of its attention.
        depth: The number of its blocks.
        seed: Decides the split, the first weights and the order of the equations.
        steps: How long it is trained.
        evaluations: The number of evaluations, half of them evenly in the logarithm of the step, half in the step.
        measure_paths: Paths of each measurement of the effective degree.
        measure_nodes: Nodes on them.
        measure_degree: The highest degree of their fits.
    """

    operation: Operation = "divide"
    prime: int = 97
    fraction: float = 0.3
    weight_decay: float = 0.0
    lr: float = 1e-3
    softmax: Literal["float32", "float64"] = "float32"
    batch: int = 512
    width: int = 128
    heads: int = 4
    depth: int = 2
    steps: int = field(default=100_000, metadata=SCALE)
    evaluations: int = field(default=200, metadata=SCALE)
    measure_paths: int = field(default=200, metadata=SCALE)
    measure_nodes: int = field(default=64, metadata=SCALE)
    measure_degree: int = field(default=40, metadata=SCALE)

    def check(self) -> None:
        """Raise ``ValueError`` if the values do not fit together."""
        check_least(self, 1, "batch", "heads", "depth", "steps", "width")
        check_least(self, 2, "evaluations", "measure_paths")
        check_least(self, 0, "weight_decay")
        check_positive(self, "lr")
        check_fit(self.measure_nodes, self.measure_degree, least_degree=1)
        if self.prime < 2 or not all(self.prime % divisor for divisor in range(2, math.isqrt(self.prime) + 1)):
            raise ValueError(f"prime={self.prime} is not a prime number: dividing by it is not always possible.")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width={self.width} cannot be shared evenly by {self.heads} heads, each of an even width: use a "
                f"multiple of {2 * self.heads}."
            )
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction={self.fraction!r} is a share of all equations: it must lie between 0 and 1.")
        if min(self.train_equations, self.equations - self.train_equations) < 2:
            raise ValueError(
                f"fraction={self.fraction!r} of {self.equations} equations leaves {self.train_equations} to train on: "
                "it must leave at least two to train on, and two to validate."
            )

    @property
    def equations(self) -> int:
        """The number of equations."""
        return self.prime * (self.prime - 1) if self.operation == "divide" else self.prime**2

    @property
    def train_equations(self) -> int:
        """The number of equations that are trained on."""
        return round(self.fraction * self.equations)

    @property
    def batch_size(self) -> int:
        """The number of equations in a step: Power et al. take half where there are few."""
        return min(self.batch, math.ceil(self.train_equations / 2))


def list_equations(operation: Operation, prime: int) -> Split:
    """List all equations, every x with every y except division by zero, and their answers.

    The tokens of an equation are x, the operation, y and the equals sign. Numbers are their own tokens; the operation
    and the equals sign are the two that follow them.
    """
    x, y = torch.cartesian_prod(torch.arange(prime), torch.arange(prime)).unbind(1)
    if operation == "divide":
        x, y = x[y > 0], y[y > 0]
    # 0 has no inverse; it is divided by nowhere, being even.
    inverses = torch.tensor([0, *(pow(number, -1, prime) for number in range(1, prime))])
    answers = {
        "add": lambda: x + y,
        "subtract": lambda: x - y,
        "multiply": lambda: x * y,
        "divide": lambda: x * inverses[y],
        "quadratic": lambda: x**2 + x * y + y**2,
        "by-parity": lambda: torch.where(y % 2 == 1, x * inverses[y], x - y),
    }[operation]()
    signs = torch.tensor([prime, prime + 1]).expand(len(x), 2)
    return Split(torch.stack([x, signs[:, 0], y, signs[:, 1]], dim=1), answers % prime)


def split_equations(settings: Grokking, device: torch.device) -> tuple[Split, Split]:
    """Return the equations to train on, which the seed decides, and the others, which validate."""
    equations = list_equations(settings.operation, settings.prime)
    order = torch.randperm(len(equations), generator=torch.Generator().manual_seed(settings.seed))
    train, validation = (
        Split(equations.inputs[rows].to(device), equations.labels[rows].to(device))
        for rows in (order[: settings.train_equations], order[settings.train_equations :])
    )
    return train, validation


def train(settings: Grokking, job: Job) -> None:
    """Carry out a run, or what is left of it.

    In float32 throughout, without TF32: a step of this size is bound by its launches, and without weight decay the loss
    falls so low that digits matter.
    """
    equations, validation = split_equations(settings, job.device)
    # Drawn on the CPU, so that a seed means the same network on every device.
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
        options=StepOptions(
            optimizer=torch.optim.AdamW,
            options={"betas": _BETAS, "weight_decay": settings.weight_decay},
            loss=compute_precise_loss if settings.softmax == "float64" else cross_entropy,
            fused_on_cpu=True,
        ),
        rate=lambda step: settings.lr * min(1.0, (step + 1) / _WARM_UP),
        weight=lambda _: 0.0,
        evaluation_steps=frozenset(choose_evaluation_steps(settings.steps, settings.evaluations)),
        evaluate=lambda *_: evaluate(model, equations, validation, settings),
        describe=lambda entry: f"validation {entry['validation_accuracy']:.1%} · ED {entry[DEGREE]['value']:.3g}",
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
    """Choose the steps after which a network is evaluated, the first and the last among them.

    Half of them are spaced evenly in the logarithm of the step, since memorizing takes hundreds of steps and
    generalizing may take hundreds of thousands, and half evenly in the step, so that late transitions are seen as well.
    They are fewer than asked for where the two spacings coincide.
    """
    half = max(2, evaluations // 2)
    by_factor = (round(math.exp(math.log(steps) * number / (half - 1))) for number in range(half))
    rest = max(1, evaluations - half)
    evenly = (round(steps * number / rest) for number in range(1, rest + 1))
    return sorted({*by_factor, *evenly} - {0})


def compute_precise_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    """Return the mean cross entropy in float64: in float32 what is memorized well has a loss of 0, and no gradient."""
    return cross_entropy(outputs.double(), answers)


def evaluate(model: nn.Module, equations: Split, validation: Split, settings: Grokking) -> dict[str, Any]:
    """Measure a network, always on the same equations and paths, so that what changes is the network.

    Nothing is drawn from torch's own random numbers, and the network is left as it was. Sharpness is that of the loss
    on the equations that are trained on.
    """
    found: dict[str, Any] = {}
    for name, part in (("train", equations), ("validation", validation)):
        found[f"{name}_accuracy"], found[f"{name}_loss"] = _score(model, part)
        if not math.isfinite(found[f"{name}_loss"]):
            raise ValueError(
                f"the {name} loss is no longer a number: training diverged. Try a smaller lr than {settings.lr:g}."
            )
        trace = effdeg.trace(
            model, part.inputs, paths=settings.measure_paths, nodes=settings.measure_nodes, at=_PATHS_AT
        )
        found[f"{name}_effective_degree"] = fit_trace(trace, settings.measure_degree)
    measured = proxies.evaluate(
        model,
        (equations.inputs, equations.labels),
        compute_precise_loss,
        names=_PROXIES.values(),
        batch_size=_AT_ONCE,
    )
    return found | {name: measured.results[proxy].value for name, proxy in _PROXIES.items()}


@torch.no_grad()
def _score(model: nn.Module, equations: Split) -> tuple[float, float]:
    right = torch.zeros((), device=equations.labels.device, dtype=torch.float64)
    loss = torch.zeros_like(right)
    parts = (torch.split(each, _AT_ONCE) for each in (equations.inputs, equations.labels))
    for tokens, answers in zip(*parts, strict=True):
        outputs = model(tokens)
        right += (outputs.argmax(1) == answers).sum()
        loss += compute_precise_loss(outputs, answers) * len(answers)
    return float(right) / len(equations), float(loss) / len(equations)


@dataclass(frozen=True, eq=False)
class Course:
    """What was found at each evaluation of a run; a moment is the index of an evaluation, None if it did not come."""

    run: Run

    @cached_property
    def steps(self) -> Array:
        """The steps after which it was evaluated."""
        return np.array([entry["step"] for entry in self.run.metrics], dtype=float)

    def values(self, name: str) -> Array:
        """Return a measure at every evaluation."""
        if name == NORMALIZED:
            found = [entry[DEGREE]["normalized"] for entry in self.run.metrics]
        else:
            found = [each["value"] if isinstance(each := entry[name], dict) else each for entry in self.run.metrics]
        return np.array(found, dtype=float)

    def errors(self, name: str) -> Array:
        """Return the standard errors of an effective degree."""
        key = "normalized_stderr" if name == NORMALIZED else "stderr"
        return np.array([entry[DEGREE][key] for entry in self.run.metrics], dtype=float)

    def reaches(self, name: str, least: float) -> int | None:
        """Return the first evaluation at which a measure is at least this large."""
        found = np.flatnonzero(self.values(name) >= least)
        return int(found[0]) if len(found) else None

    @cached_property
    def memorized(self) -> int | None:
        """The evaluation at which 99% of the training equations are answered correctly for the first time."""
        return self.reaches("train_accuracy", 0.99)

    @cached_property
    def transition(self) -> tuple[int, int] | None:
        """The evaluations at which validation accuracy has passed 10% and 90%; None if it did not generalize."""
        start, end = (self.reaches("validation_accuracy", share) for share in (0.1, 0.9))
        return None if start is None or end is None else (start, end)

    @cached_property
    def drop(self) -> int | None:
        """The evaluation at which the validation loss has halved since its highest before the end of the transition.

        Without a transition there is no drop, and later there may be spikes.
        """
        if self.transition is None:
            return None
        highest, loss = self.peak("validation_loss", until=self.transition[1]), self.values("validation_loss")
        found = np.flatnonzero(loss[highest:] <= loss[highest] / 2)
        return highest + int(found[0]) if len(found) else None

    def peak(self, name: str, *, until: int | None = None) -> int:
        """Return the evaluation at which a measure was highest, of all or of those until a certain one."""
        return int(self.values(name)[: None if until is None else until + 1].argmax())

    def peak_before_drop(self, name: str = DEGREE) -> int | None:
        """Return the evaluation at which a measure was highest until the drop."""
        return None if self.drop is None else self.peak(name, until=self.drop)

    def end(self, name: str) -> int:
        """Return the evaluation that stands for the end of the run: the one of the last five with the highest value.

        Spikes of the loss, of which training with Adam has some, lower the effective degree for a moment, and must not
        pass for a fall.
        """
        first = max(0, len(self.steps) - 5)
        return first + int(self.values(name)[first:].argmax())

    def largest_fall(self, name: str) -> float:
        """Return the largest fall of a measure, as a share of its highest so far."""
        values = self.values(name)
        return float((1 - values / np.maximum.accumulate(values)).max())


def judge_course(course: Course, degree: str = DEGREE) -> Verdict | None:
    """Judge whether ED rises while a network memorizes, peaks near the drop, and falls; None without a drop.

    Intervals are two standard errors on either side. The errors of two evaluations are taken as independent, which is
    cautious: they are measured along the same paths.
    """
    if course.drop is None:
        return None
    values, errors, peak = course.values(degree), course.errors(degree), course.peak(degree)

    def compare(quantity: str, one: int, other: int) -> Verdict:
        difference, margin = values[one] - values[other], 2 * math.hypot(errors[one], errors[other])
        return judge(quantity, float(difference), (difference - margin, difference + margin), above=0)

    # The peak may be at any evaluation that is not below it by more than the error bars.
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
        compare("fall of ED from its highest to the end", peak, course.end(degree)),
    ])


def judge_runs(runs: Iterable[Run], degree: str = DEGREE) -> Verdict:
    """Judge the claim on the seeds whose validation loss drops: not decided if there are none, or if they disagree."""
    found = [verdict for run in runs if (verdict := judge_course(Course(run), degree)) is not None]
    if not found:
        return Verdict("not decided", "runs whose validation loss drops", 0.0)
    verdict = judge_all(found)
    return verdict if len({each.word for each in found}) == 1 else replace(verdict, word="not decided")


Moment = Callable[[Course], int | None]
_STEPS: dict[str, Moment] = {
    "99% in training": lambda course: course.memorized,
    "50% in validation": lambda course: course.reaches("validation_accuracy", 0.5),
    "99% in validation": lambda course: course.reaches("validation_accuracy", 0.99),
    "loss highest": lambda course: course.transition and course.peak("validation_loss", until=course.transition[1]),
    "loss halved": lambda course: course.drop,
    "ED highest until then": lambda course: course.peak_before_drop(),
    "ED highest": lambda course: course.peak(DEGREE),
}
_DEGREES: dict[str, Moment] = {
    "at first": lambda _: 0,
    "memorized": lambda course: course.memorized,
    "highest until the drop": lambda course: course.peak_before_drop(),
    "at the drop": lambda course: course.drop,
    "highest": lambda course: course.peak(DEGREE),
    "at the end": lambda course: course.end(DEGREE),
}
_MEASURES: dict[str, Callable[[Sequence[Course]], str]] = {
    "claim": lambda courses: judge_runs(course.run for course in courses).word,
    "claim for normalized ED": lambda courses: judge_runs((course.run for course in courses), NORMALIZED).word,
    "normalized ED highest until the drop": lambda courses: _write_values(
        courses, NORMALIZED, lambda course: course.peak_before_drop(NORMALIZED)
    ),
    "at the drop": lambda courses: _write_values(courses, NORMALIZED, lambda course: course.drop),
    "at the end": lambda courses: _write_values(courses, NORMALIZED, lambda course: course.end(NORMALIZED)),
    "fall of the norm": lambda courses: f"{max(course.largest_fall('parameter_norm') for course in courses):.0%}",
    "norm highest": lambda courses: _write_lead(courses, "parameter_norm"),
    "sharpness highest": lambda courses: _write_lead(courses, "sharpness"),
    "adaptive sharpness highest": lambda courses: _write_lead(courses, "adaptive_sharpness"),
}
_STEPS_NOTES = (
    "In training and in validation: the first time that this share of the equations is answered correctly.",
    "Loss: that of validation; its drop is where it has halved since its highest before 90% in validation.",
    "With several seeds: the least and the largest.",
)
_DEGREES_NOTES = (
    "Along paths between validation equations, ± the standard error of the measurement.",
    "At the end: the highest of the last five evaluations, since a spike of the loss lowers ED for a moment.",
)
_MEASURES_NOTES = (
    "Fall of the norm: the largest, as a share of its highest so far.",
    "Norm and sharpness highest: the step, as a multiple of that of the drop.",
)


class GrokkingStudy(Study):
    """Measures of networks on their way from memorizing to generalizing; the first method is the paper's setting."""

    def claim(self, results: Results) -> Verdict:
        """Judge the claim in the paper's setting."""
        return judge_runs(results.methods[0].runs)

    def tables(self, results: Results) -> list[Table]:
        """Return when it happened, the effective degree then, and the other measures."""
        steps, degrees, measures = [], [], []
        for each in results.methods:
            title, courses = each.method.title, _read(each)
            absent = (each.state, *[NOTHING] * (len(_STEPS) - 1))
            found = [_write_steps(courses, moment) for moment in _STEPS.values()]
            steps.append((title, *(found if courses else absent)))
            degrees.append((title, *(_write_degree(courses, moment) for moment in _DEGREES.values())))
            if courses:
                measures.append((title, *(write(courses) for write in _MEASURES.values())))
        return [
            Table(f"After how many of {results.scale['steps']:,} steps", ("", *_STEPS), tuple(steps), _STEPS_NOTES),
            Table("Effective degree", ("", *_DEGREES), tuple(degrees), _DEGREES_NOTES),
            Table("The claim for every method, and other measures", ("", *_MEASURES), tuple(measures), _MEASURES_NOTES),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return a figure of the methods with weight decay and one of those without, the one with most drops first."""
        groups = {
            "with-decay": [each for each in results.done if each.runs[0].settings["weight_decay"] > 0],
            "without-decay": [each for each in results.done if each.runs[0].settings["weight_decay"] == 0],
        }
        shown = sorted((name for name in groups if groups[name]), key=lambda name: -_count_drops(groups[name]))
        return [
            StudyFigure(
                name,
                f"Loss and measures along training {name.replace('-', ' weight ')}. Dotted: 99% of the training "
                "equations are answered correctly. Shaded: validation accuracy goes from 10% to 90%. The effective "
                "degree is shown with its 95% interval, and a dot at its highest; dashed, by the scale on the right, "
                "the normalized one. Losses below 0.0001 are drawn there. Thick: the first seed; thin: the others.",
                lambda theme, name=name: draw_courses(groups[name], theme=theme),  # type: ignore[misc]
            )
            for name in shown
        ]

    def headline(self, run: Run) -> str:
        """Describe how accurate a run became, spikes aside, and when its effective degree was highest."""
        course = Course(run)
        peak = course.peak(DEGREE)
        return (
            f"validation accuracy up to {course.values('validation_accuracy').max():.2%}, highest ED "
            f"{course.values(DEGREE)[peak]:.3f} at step {course.steps[peak]:,.0f}"
        )


def _read(each: MethodRuns) -> list[Course]:
    return [Course(run) for run in each.runs]


def _count_drops(methods: Sequence[MethodRuns]) -> int:
    return sum(course.drop is not None for each in methods for course in _read(each))


def _write_range(values: Iterable[float], form: str) -> str:
    """Write a value, or the least and the largest of several."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys([form.format(ends[0]), form.format(ends[-1])])) if ends else NOTHING


def _write_values(courses: Sequence[Course], name: str, moment: Moment) -> str:
    found = ((course, moment(course)) for course in courses if course.drop is not None)
    return _write_range((float(course.values(name)[at]) for course, at in found if at is not None), "{:.2f}")


def _write_lead(courses: Sequence[Course], name: str) -> str:
    """Write when a measure is highest, as multiples of the step of the drop."""
    found = (course.steps[course.peak(name)] / course.steps[course.drop] for course in courses if course.drop)
    return _write_range(map(float, found), "{:.2g}")


def _write_steps(courses: Sequence[Course], moment: Moment) -> str:
    """Write the steps of a moment, and of how many seeds if it did not come in all."""
    found = [float(course.steps[at]) for course in courses if (at := moment(course)) is not None]
    if not found:
        return "never"
    some = "" if len(found) == len(courses) else f" ({len(found)} of {len(courses)})"
    return _write_range(found, "{:,.0f}") + some


def _write_degree(courses: Sequence[Course], moment: Moment) -> str:
    found = [(course, at) for course in courses if (at := moment(course)) is not None]
    if not found:
        return NOTHING
    values = [course.values(DEGREE)[at] for course, at in found]
    errors = [course.errors(DEGREE)[at] for course, at in found]
    return f"{np.mean(values):.3f} ± {math.hypot(*errors) / len(errors):.3f}"


def draw_courses(methods: Sequence[MethodRuns], *, theme: str = "light") -> "Figure":
    """Draw what happened along training: a column for each method, its first seed thick and the others thin.

    Not the mean over seeds, which generalize at different steps: it would show no peak where each of them has one.
    """
    from effdeg.plots import open_figure

    with open_figure(theme, (1.0 + 3.2 * len(methods), 8.6)) as (colors, figure):
        grid = figure.subplots(5, len(methods), sharex="col", squeeze=False, height_ratios=[1.3, 1.3, 1, 1, 1])
        for column, each in zip(grid.T, methods, strict=True):
            courses = _read(each)
            for course in reversed(courses):
                _draw_course(column, course, colors, first=course is courses[0])
            _mark(column, courses[0], colors)
            column[0].set_title(each.method.title, pad=26, fontweight="bold")
            column[-1].set_xlabel("step")
        for axes, name in zip(grid[:, 0], ("loss", "effective degree", *OTHERS.values()), strict=True):
            axes.set_ylabel(name)
        figure.align_ylabels(grid[:, 0])
    return figure


def _draw_course(column: "Sequence[Axes]", course: Course, colors: "Theme", *, first: bool) -> None:
    top, *below = column
    width, alpha = (1.5, 1.0) if first else (0.6, 0.6)
    for name, color, share in (("train", colors.simple, 0.6), ("validation", colors.complex, 1.0)):
        # How well equations are memorized whose loss is below this does not matter here.
        loss = np.maximum(course.values(f"{name}_loss"), 1e-4)
        top.plot(course.steps, loss, color=color, lw=share * width, alpha=alpha)
    for axes, name in zip(below, (DEGREE, *OTHERS), strict=True):
        axes.plot(course.steps, course.values(name), color=colors.ink, lw=width, alpha=alpha)


def _mark(column: "Sequence[Axes]", course: Course, colors: "Theme") -> None:
    """Set the axes, and mark where a run memorized and generalized, and its highest effective degree with its error."""
    top, degree, *_ = column
    values, peak = course.values(DEGREE), course.peak(DEGREE)
    margin = stats.t.ppf(0.975, int(course.run.settings["measure_paths"]) - 1) * course.errors(DEGREE)
    degree.fill_between(course.steps, values - margin, values + margin, color=colors.ink, alpha=0.2, lw=0)
    degree.plot(course.steps[peak], values[peak], "o", color=colors.complex, ms=5, zorder=4, clip_on=False)
    _draw_normalized(degree, course, colors)
    top.set_yscale("log")
    top.text(0.03, 0.16, "validation", color=colors.complex, fontsize=8, transform=top.transAxes)
    top.text(0.03, 0.05, "training", color=colors.simple, fontsize=8, transform=top.transAxes)
    above: dict[str, Any] = {"transform": top.get_xaxis_transform(), "ha": "center", "fontsize": 8}
    for axes in column:
        axes.set_xscale("log")
        # In the first ten steps the learning rate rises, and hardly anything else.
        axes.set_xlim(10, max(20, float(course.steps[-1])))
        axes.minorticks_off()
        axes.grid(color=colors.faint, lw=0.5)
        axes.set_axisbelow(True)
        if axes is not top:
            axes.set_ylim(bottom=0)
        if course.memorized is not None:
            axes.axvline(course.steps[course.memorized], color=colors.simple, ls=":", lw=1)
        if course.transition is not None:
            axes.axvspan(*course.steps[list(course.transition)], color=colors.complex, alpha=0.25, lw=0)
    if course.memorized is not None:
        top.text(course.steps[course.memorized], 1.02, "memorized", color=colors.simple, **above)
    if course.transition is not None:
        # Higher than the other label, which may be close.
        middle = math.sqrt(math.prod(course.steps[list(course.transition)]))
        top.text(middle, 1.12, "generalizes", color=colors.complex, **above)


def _draw_normalized(degree: "Axes", course: Course, colors: "Theme") -> None:
    """Draw the normalized effective degree behind the raw one, by a scale of its own."""
    axes = degree.twinx()
    axes.plot(course.steps, course.values(NORMALIZED), color=colors.simple, lw=1, ls="--", alpha=0.8)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", colors=colors.simple, length=0, labelsize=7)
    degree.set_zorder(axes.get_zorder() + 1)
    degree.patch.set_visible(False)
    degree.text(0.03, 0.9, "raw", color=colors.ink, fontsize=8, transform=degree.transAxes)
    degree.text(0.03, 0.79, "normalized", color=colors.simple, fontsize=8, transform=degree.transAxes)
