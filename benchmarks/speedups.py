"""What each way to speed up the lab's training step gains by itself, and where the time of a step goes.

Every variant is a process of its own, which compiles while others do. As soon as one is ready, all others are stopped
until it is timed, so that nothing else runs on the machine.
"""

import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor

from benchmarks.engine import BATCH, _examples
from benchmarks.profiling import count_work, measure_rates, profile_step
from benchmarks.timing import Record, device, seconds
from effdeg_lab.engine import Training
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.step import Step

Key = tuple[str, str]  # a variant's name and a method
Lines = queue.Queue[tuple[Key, str | None]]  # what processes print; None at the end

AT_ONCE = 20
# Seconds that timing and profiling may take once a variant is ready, and for all variants.
TURN, TOTAL = 40.0, 130.0
ROUNDS, REPLAYS = 5, 20
BOTH = ("plain", "ed")


@dataclass(frozen=True)
class Variant:
    """A training step that differs from the engine's first version, which trains separate parameters."""

    name: str
    methods: tuple[str, ...] = ("plain",)
    model: str = "vit-tiny"
    baseline: str = "baseline"
    attention: str | None = None  # the only one of torch's kernels that may be used
    inductor: Record = field(default_factory=dict)
    recompute: float = 1.0  # the share of activations that may be stored; a private switch of torch
    flat: bool = False
    fused: bool = False  # ViT.fuse, for 64 tokens
    channels_last: bool = False
    profiled: bool = False
    slow: bool = False  # to compile, with autotuning


MEAN, RESNET = "vit-tiny-mean", "resnet18"
_FEWER = {"combo_kernels": True, "benchmark_combo_kernel": True}
_MOST = {"max_autotune": True, "coordinate_descent_tuning": True}  # the mode max-autotune-no-cudagraphs
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("baseline", BOTH, profiled=True),
        Variant("combo_kernels", inductor=_FEWER),
        Variant("coordinate_descent_tuning", inductor={"coordinate_descent_tuning": True}),
        Variant("max-autotune-no-cudagraphs", inductor=_MOST, slow=True),
        Variant("activations: store half", recompute=0.5),
        Variant("flat parameters", BOTH, flat=True),
        Variant("64 tokens", BOTH, model=MEAN),
        Variant("64 tokens, flash attention", model=MEAN, attention="flash"),
        Variant("64 tokens, efficient attention", model=MEAN, attention="efficient"),
        Variant("64 tokens, attention as products", model=MEAN, attention="math"),
        Variant("64 tokens, fused", model=MEAN, fused=True),
        Variant("64 tokens, flat, fused", BOTH, model=MEAN, flat=True, fused=True, profiled=True),
        Variant("ResNet-18", model=RESNET, baseline="ResNet-18"),
        Variant("ResNet-18, channels last", model=RESNET, baseline="ResNet-18", channels_last=True),
        Variant("ResNet-18, channels last, flat", model=RESNET, baseline="ResNet-18", channels_last=True, flat=True),
    )
}
_measured: dict[Key, Record] = {}


def engine_speedups(only: Collection[str] = ()) -> Record:
    """Time a step of every variant, or of some and what they are compared with."""
    if unknown := set(only) - set(VARIANTS):
        raise ValueError(f"not a variant: {', '.join(sorted(unknown))}. There are: {'; '.join(VARIANTS)}.")
    chosen = [each for each in VARIANTS.values() if not only or each.name in only]
    chosen = list({each.name: each for each in [*(VARIANTS[each.baseline] for each in chosen), *chosen]}.values())
    measured = _measure([(variant.name, method) for variant in chosen for method in variant.methods])
    rows = []
    for (name, method), row in measured.items():
        base = measured.get((VARIANTS[name].baseline, method), {}).get("milliseconds")
        ratio = {"ratio": row["milliseconds"] / base} if base and "milliseconds" in row else {}
        rows.append({key: value for key, value in row.items() if key != "profile"} | ratio)
    return {
        "name": "milliseconds of a training step, and relative to the engine before it was made faster",
        "detail": f"batch of {BATCH}, CIFAR-10's size, bf16; median of {ROUNDS} times {REPLAYS} replays",
        "rows": rows,
    }


def step_profile() -> Record:
    """Group the kernels of a step by what they do, before and after it was made faster."""
    keys = [(each.name, method) for each in VARIANTS.values() if each.profiled for method in each.methods]
    _measure([key for key in keys if key not in _measured])
    rows, rates = [], measure_rates()
    for name, method in keys:
        row = _measured[name, method]
        if found := row.get("profile"):
            images, tokens = BATCH if method == "plain" else 2 * BATCH, 64 if row["model"] == MEAN else 65
            work = count_work(images, tokens, found["parameters"], rates)
            rows.append({key: row[key] for key in ("variant", "method", "milliseconds")} | {"work": work} | found)
    return {
        "name": "microseconds of a training step by what its kernels do",
        "detail": f"ViT-Tiny, batch of {BATCH}, for ed with as many points; floors in milliseconds",
        "rows": rows,
    }


def _measure(keys: list[Key]) -> dict[Key, Record]:
    """Measure variants and print each at once: those that matter most begin first, the slowest last."""
    ordered = sorted(keys, key=lambda key: (VARIANTS[key[0]].slow, -len(VARIANTS[key[0]].methods), key[1] == "plain"))
    for key, row in run_in_turn({key: make_command(*key) for key in ordered}):
        _measured[key] = {"variant": key[0], "model": VARIANTS[key[0]].model, "method": key[1], **row}
        print(json.dumps({name: value for name, value in _measured[key].items() if name != "profile"}), flush=True)
    return {key: _measured[key] for key in keys}


def make_command(variant: str, method: str) -> list[str]:
    """Return the command that measures a variant, as :func:`run_in_turn` expects it."""
    return [sys.executable, "-m", "benchmarks.speedups", variant, method]


def run_in_turn(
    commands: Mapping[Key, list[str]], *, turn: float = TURN, total: float = TOTAL
) -> Iterator[tuple[Key, Record]]:
    """Run processes at once up to the point where they are ready, and the rest of each alone.

    A process prints ``ready``, waits for a line, prints JSON objects, which are joined, and ends. One that fails or
    takes too long gives an ``error``.
    """
    start, waiting, running = time.monotonic(), list(commands.items()), dict[Key, _Process]()
    lines: Lines = queue.Queue()
    try:
        while waiting or running:
            if time.monotonic() - start > total:
                for key in [*running, *dict(waiting)]:
                    yield key, {"error": f"not measured within {total:g} s"}
                return
            while waiting and len(running) < AT_ONCE:
                key, command = waiting.pop(0)
                running[key] = _Process(command, key, lines)
            try:
                key, line = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if key not in running or (line is not None and line != "ready"):
                continue
            process = running.pop(key)
            if line is None:
                yield key, {"error": process.end() or "ended before it was ready"}
                continue
            for each in running.values():
                each.send(signal.SIGSTOP)
            row = _take_turn(key, process, lines, turn)
            for each in running.values():
                each.send(signal.SIGCONT)
            yield key, row
    finally:
        for process in running.values():
            process.end()


def _take_turn(key: Key, process: "_Process", lines: Lines, turn: float) -> Record:
    row: Record = {"seconds_until_ready": round(process.age(), 1)}
    others, end = list[tuple[Key, str | None]](), time.monotonic() + turn
    process.start_turn()
    while time.monotonic() < end:
        try:
            owner, line = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if owner != key:
            others.append((owner, line))
        elif line is None:
            break
        elif line.startswith("{"):
            row |= json.loads(line)
    else:
        row["error"] = f"not done after {turn:g} s"
    if error := process.end():
        row["error"] = error
    for each in others:
        lines.put(each)
    return row


class _Process:
    """A process with its children; what it prints goes to a queue, and what it writes to stderr to a file."""

    def __init__(self, command: list[str], key: Key, lines: Lines) -> None:
        self._start, self._log = time.monotonic(), tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipes: Record = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        # In a process group of its own, to stop it as a whole.
        self._process = subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)
        self._reader = threading.Thread(target=self._read, args=(key, lines), daemon=True)
        self._reader.start()

    def _read(self, key: Key, lines: Lines) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put((key, line.strip()))
        lines.put((key, None))

    def age(self) -> float:
        return time.monotonic() - self._start

    def start_turn(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which its output will show
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def end(self) -> str:
        """Kill what is left of it, and return what went wrong: the last line that names an error, if there is one."""
        self.send(signal.SIGKILL)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it may have ended without reading what was written for it
            self._process.stdin.close()
        with self._process, self._log:
            self._reader.join()
            self._log.seek(0)
            written = self._log.read()
        named = [line for line in written.splitlines() if "Error" in line.partition(":")[0]]
        if self._process.returncode > 0:
            print(written[-1500:], file=sys.stderr, flush=True)
            return named[-1][:300] if named else f"ended with status {self._process.returncode}"
        return ""


def prepare(variant: Variant, method: str) -> Step:
    """Make the step of a variant, compiled and captured on a GPU; on a CPU a small network's, to try it."""
    on_gpu, penalized = device().type == "cuda", method != "plain"
    for name in ("flash", "mem_efficient", "cudnn", "math") if variant.attention else ():
        chosen = name.removeprefix("mem_") == variant.attention
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(chosen)
    torch.backends.cudnn.benchmark = True  # as the engine does
    # There are more processes than cores; those with more to compile than others get more of them.
    threads: Record = {"compile_threads": 4 if variant.slow or penalized else 1}
    for name, value in (threads | variant.inductor).items():
        setattr(inductor, name, value)
    functorch.activation_memory_budget = variant.recompute
    own: Record = {"model": variant.model, "batch": BATCH} if on_gpu else {"model": "mlp", "batch": 32}
    settings = Training(regularizer=method, weight=7.0, fused=variant.fused, **own)
    examples = _examples(settings) if on_gpu else _examples(settings, 640)
    model = make_network(settings, examples, device()).train()
    form = torch.channels_last if variant.channels_last else torch.contiguous_format
    model.to(memory_format=form)  # type: ignore[call-overload]
    step = Step(make_task(settings, examples, model), size=settings.batch, flat=variant.flat)
    step.compile(penalized=penalized)
    step.capture(penalized=penalized)
    return step


def main(name: str, method: str) -> None:
    """Measure one variant in this process; :func:`run_in_turn` says when."""
    # What else prints, prints to stderr.
    out, sys.stdout = sys.stdout, sys.stderr
    variant, penalized, on_gpu = VARIANTS[name], method != "plain", device().type == "cuda"
    step = prepare(variant, method)
    step(torch.arange(BATCH if on_gpu else 32, device=device()), rate=1e-3, weight=7.0 if penalized else 0.0)
    print("ready", file=out, flush=True)
    sys.stdin.readline()
    replay, rounds = step._steps[penalized, None], []
    for _ in range(ROUNDS + 1):  # the first to warm up
        rounds.append(1e3 * seconds(lambda: [replay() for _ in range(REPLAYS)]) / REPLAYS)
    milliseconds = statistics.median(rounds[1:])
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    row: Record = {"milliseconds": milliseconds, "slowest": max(rounds[1:]), "peak_MiB": peak}
    print(json.dumps(row), file=out, flush=True)
    if variant.profiled:
        found = profile_step(replay, lambda: step._run(penalized, None), milliseconds)
        found["parameters"] = sum(each.numel() for each in step.state()["model"].values())
        print(json.dumps({"profile": found}), file=out, flush=True)


CASES = [engine_speedups, step_profile]

if __name__ == "__main__":
    main(*sys.argv[1:])
    # Not in the usual way: to free a graph and its memory takes a second, in which all others wait.
    os._exit(0)
