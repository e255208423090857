"""What proxies and baselines cost, on ResNet-18 and ViT-Tiny."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.timing import device, interleaved, seconds
from effdeg import baselines, proxies
from effdeg_lab.engine.step import CapturedStep
from effdeg_lab.models import ResNet18, ViT

Record = dict[str, Any]
Data = tuple[Tensor, Tensor]
MODELS: dict[str, Callable[[], nn.Module]] = {"ResNet-18": ResNet18, "ViT-Tiny": ViT}
ALONG_PATHS = ("effective_degree", "effective_degree_normalized", "decision_regions", "total_variation")
METHODS = ("plain", "mixup", "sam", "asam", "jacobian", "ed")


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


def shared_paths() -> Record:
    """Everything along paths together, against the most expensive of it alone."""
    return _shared("ViT-Tiny", ALONG_PATHS)


def shared_paths_with_kinks() -> Record:
    """The same with linear regions, which a ReLU network has."""
    return _shared("ResNet-18", (*ALONG_PATHS, "linear_regions"))


def shared_outputs() -> Record:
    """Margins together, against the most expensive of them alone."""
    return _shared("ResNet-18", ("margin@10", "margin@50"))


def rival_costs() -> Record:
    """Time every rival's training step, in units of a plain step."""
    rows = []
    for kind in MODELS:
        steps = {name: _step(kind, name) for name in METHODS}
        times = dict(
            zip(steps, interleaved(*steps.values(), repeats=20 if device().type == "cuda" else 3), strict=True)
        )
        rows += [
            {"method": name, "model": kind, "ratio": time / times["plain"], "milliseconds": 1e3 * time}
            for name, time in times.items()
        ]
    how = "bf16 autocast, captured in a CUDA graph, compiled but for jacobian" if device().type == "cuda" else "eager"
    return {"name": "step of a rival / plain step", "detail": f"batch of {_batch()}; AdamW; {how}", "rows": rows}


def _shared(kind: str, names: tuple[str, ...]) -> Record:
    model, data, route = _study(kind)
    runs = [lambda each=each: _evaluate(model, data, route, each) for each in ([*names], *([name] for name in names))]
    together, *alone = interleaved(*runs, repeats=3)
    detail = f"{kind}: {', '.join(names)}; {together:.2f} s and {max(alone):.2f} s"
    name = "proxies that share passes / the most expensive of them"
    return {"name": name, "ratio": together / max(alone), "target": "≤ 1.2", "detail": detail}


def _cost(model: nn.Module, data: Data, route: proxies.RunOptions, names: list[str] | None) -> float:
    """Time proxies in units of a gradient over the same data, in batches of the same size."""

    def gradient() -> None:
        for x, y in zip(torch.split(data[0], 256), torch.split(data[1], 256), strict=True):
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    (one,) = interleaved(gradient, repeats=3)
    took = seconds(lambda: _evaluate(model, data, route, names))
    # Timed again, warm, but for what takes so long that it hardly matters.
    return (took if took > 20 else seconds(lambda: _evaluate(model, data, route, names))) / one


def _evaluate(model: nn.Module, data: Data, route: proxies.RunOptions, names: list[str] | None) -> None:
    reference = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    proxies.evaluate(model, data, cross_entropy, names=names, reference=reference, **route)


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
    method = baselines.method(name, classes=10) if name == "mixup" else baselines.method(name)
    options = {"lr": torch.tensor(1e-3, device=device()), "fused": True, "capturable": True} if on_gpu else {"lr": 1e-3}
    optimizer = method.optimizer(model, torch.optim.AdamW, weight_decay=0.1, **options)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device().type, torch.bfloat16, enabled=on_gpu):
            return method.loss(model, x, y, cross_entropy)

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

    return CapturedStep(model, step) if on_gpu else step


def _batch() -> int:
    return 256 if device().type == "cuda" else 32


CASES = [proxy_costs, shared_paths, shared_paths_with_kinks, shared_outputs, rival_costs]
