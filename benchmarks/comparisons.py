"""What proxies and baselines cost, on ResNet-18 and ViT-Tiny."""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.steps import Loss
from benchmarks.timing import Record, device, interleaved, seconds
from effdeg import Penalty, baselines, proxies
from effdeg_lab.engine.step import CapturedStep
from effdeg_lab.models import ResNet18, ViT

Data = tuple[Tensor, Tensor]
MODELS: dict[str, Callable[[], nn.Module]] = {"ResNet-18": ResNet18, "ViT-Tiny": ViT}
METHODS = ("plain", "mixup", "sam", "asam", "jacobian", "ed")
# With as many unlabeled examples as labeled ones where these are named.
RELATIVES = (
    "plain",
    "mixup",
    "cutmix",
    "regmixup",
    "ict, unlabeled",
    "ed",
    "ed, anchor=self",
    "ed, unlabeled, teacher",
)
SETTINGS: dict[str, Record] = {
    **{name: {"classes": 10} for name in ("mixup", "cutmix", "regmixup")},
    "ed, anchor=self": {"anchor": "self"},
}


def proxy_costs() -> Record:
    """Time every proxy by itself, and nearly all together, in units of one gradient over the same examples."""
    rows: list[Record] = []
    for name in proxies.names():
        row: Record = {"proxy": name}
        for kind in MODELS:
            try:
                row[kind] = _cost(*_study(kind), [name])
            except (TypeError, ValueError, RuntimeError, ImportError) as error:
                row[kind], row["why"] = None, str(error).partition("\n")[0]
        rows.append(row)
    together: Record = {"proxy": "all but the Hessian's together"}
    for kind in MODELS:
        defined = [row["proxy"] for row in rows if row[kind] is not None and "hessian" not in row["proxy"]]
        together[kind] = _cost(*_study(kind), defined)
    rows.append(together)
    _, (x, _), route = _study("ViT-Tiny")
    return {
        "name": "time of a proxy / time of one gradient over the same examples",
        "detail": f"{len(x)} examples; {route['paths']} paths × {route['nodes']} nodes",
        "rows": rows,
    }


def baseline_costs() -> Record:
    """Time the training step of every baseline, in units of a plain step."""
    rows = [row for kind in MODELS for row in _time_steps(kind, METHODS)]
    how = "bf16 autocast, captured in a CUDA graph, compiled but for jacobian" if device().type == "cuda" else "eager"
    return {"name": "step of a baseline / plain step", "detail": f"batch of {_batch()}; AdamW; {how}", "rows": rows}


def relative_costs_resnet() -> Record:
    """Time training steps of the penalty and its relatives, in units of a plain step."""
    return _time_relatives("ResNet-18")


def relative_costs_vit() -> Record:
    """The same for ViT-Tiny: a case of its own, as compiling takes minutes."""
    return _time_relatives("ViT-Tiny")


def _time_relatives(kind: str) -> Record:
    how = "bf16 autocast, captured in a CUDA graph, compiled" if device().type == "cuda" else "eager"
    detail = f"batch of {_batch()}, and as many unlabeled where named; AdamW; {how}"
    return {"name": "step of a relative / plain step", "detail": detail, "rows": _time_steps(kind, RELATIVES)}


def _time_steps(kind: str, names: Sequence[str]) -> list[Record]:
    """Time a step of each method in turn; the first is the unit."""
    steps = [_step(kind, name) for name in names]
    times = interleaved(*steps, repeats=20 if device().type == "cuda" else 3)
    return [
        {"method": name, "model": kind, "ratio": time / times[0], "milliseconds": 1e3 * time}
        for name, time in zip(names, times, strict=True)
    ]


def _cost(model: nn.Module, data: Data, route: proxies.RunOptions, names: list[str] | None) -> float:
    """Time proxies in units of a gradient over the same data, in batches of the same size."""

    def gradient() -> None:
        for x, y in zip(torch.split(data[0], 256), torch.split(data[1], 256), strict=True):
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    (one,) = interleaved(gradient, repeats=3)
    took = seconds(lambda: _evaluate(model, data, route, names))
    # Timed again, warm, unless it takes so long that warming up hardly matters.
    return (took if took > 20 else seconds(lambda: _evaluate(model, data, route, names))) / one


def _evaluate(model: nn.Module, data: Data, route: proxies.RunOptions, names: list[str] | None) -> None:
    reference = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    others = [lambda x: model(x)]  # the model itself would be refused
    proxies.evaluate(model, data, cross_entropy, names=names, reference=reference, others=others, labeled=data, **route)


def _study(kind: str) -> tuple[nn.Module, Data, proxies.RunOptions]:
    torch.manual_seed(0)
    on_gpu = device().type == "cuda"
    count = 1024 if on_gpu else 64
    route: proxies.RunOptions = {"paths": 16, "nodes": 20, "degree": 10, "batch_size": 256}
    if on_gpu:
        route |= {"paths": 100, "nodes": 200, "degree": 40}
    data = torch.randn(count, 3, 32, 32, device=device()), torch.randint(10, (count,), device=device())
    return MODELS[kind]().to(device()).eval(), data, route


def _step(kind: str, name: str) -> Callable[[], object]:
    """Make a training step of a method."""
    on_gpu = device().type == "cuda"
    model = MODELS[kind]().to(device()).train()
    x, y = torch.randn(_batch(), 3, 32, 32, device=device()), torch.randint(10, (_batch(),), device=device())
    unlabeled = "unlabeled" in name
    method = baselines.method("plain" if unlabeled else name.partition(",")[0], **SETTINGS.get(name, {}))
    options = {"lr": torch.tensor(1e-3, device=device()), "fused": True, "capturable": True} if on_gpu else {"lr": 1e-3}
    optimizer = method.optimizer(model, torch.optim.AdamW, weight_decay=0.1, **options)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    compute = _make_unlabeled_loss(name, model, teacher, x) if unlabeled else partial(_method_loss, method, model)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device().type, torch.bfloat16, enabled=on_gpu):
            return compute(x, y)

    if on_gpu and name != "jacobian":
        # The compiled code of one method must not turn into that of any.
        torch._dynamo.reset()
        loss = torch.compile(loss, fullgraph=True, dynamic=False)

    def step() -> None:
        mixed, soft = method.batch(x, y)

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(mixed, soft)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(closure)  # type: ignore[arg-type]
        if unlabeled:
            torch._foreach_lerp_(list(teacher.parameters()), [each.detach() for each in model.parameters()], 1e-3)

    return CapturedStep(model, step) if on_gpu else step


def _method_loss(method: baselines.Method, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return method.loss(model, x, y, cross_entropy)


def _make_unlabeled_loss(name: str, model: nn.Module, teacher: nn.Module, like: Tensor) -> Loss:
    """Make the loss of a method that uses unlabeled examples and a teacher."""
    unlabeled = torch.randn_like(like)
    ict = partial(baselines.ICT(teacher), unlabeled=unlabeled)
    penalty = ict if name.startswith("ict") else partial(Penalty.efficient(), unlabeled=unlabeled, teacher=teacher)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        outputs, value = penalty(model, x, y)
        total: Tensor = cross_entropy(outputs, y) + 7.0 * value
        return total

    return loss


def _batch() -> int:
    return 256 if device().type == "cuda" else 32


CASES = [
    proxy_costs,
    baseline_costs,
    relative_costs_resnet,
    relative_costs_vit,
]
