"""Every example runs and trains."""

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.train.test_loops import run
from tests.train.test_parallel import SHARDS_ON_CPU

EXAMPLES = Path(__file__).parents[1] / "examples"
# What is run elsewhere: resume.py in test_resume.py, the distributed one below.
RUNS = {
    "plain_loop.py": [],
    "accumulation.py": [],
    "mixed_precision.py": ["bf16"],
    "checkpointing.py": [],
    "compiled.py": [],
    "lightning_callback.py": [],
    "huggingface_trainer.py": [],
    "accelerate_loop.py": [],
    "baselines.py": [],
}
ACCURATE = {"huggingface_trainer.py": 0.65}


def accuracy(output):
    return float(re.search(r"held-out accuracy ([\d.]+)%", output)[1]) / 100


@pytest.mark.parametrize("name", RUNS)
def test_an_example_trains(name):
    if name == "compiled.py" and not _compiler():
        pytest.skip("torch.compile needs a C++ compiler")
    assert accuracy(run([EXAMPLES / name], *RUNS[name])) > ACCURATE.get(name, 0.88)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_distributed_example_trains(kind):
    if kind == "fsdp" and not SHARDS_ON_CPU:
        pytest.skip("fully_shard needs torch 2.8 to run on the CPU")
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    assert accuracy(run(launch, EXAMPLES / "distributed.py", kind)) > 0.88


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_captured_example_trains():
    assert accuracy(run([EXAMPLES / "cuda_graph.py"])) > 0.88


def test_the_example_of_a_pool_ranks(tmp_path):
    output = run([EXAMPLES / "rank_a_pool.py"], "--quick", "--out", str(tmp_path / "pool.csv"))
    assert "effective_degree" in output
    assert "6 models" in output
    assert len((tmp_path / "pool.csv").read_text().splitlines()) == 7
    assert (tmp_path / "pool.png").stat().st_size > 10_000


def test_every_example_is_run():
    elsewhere = {"resume.py", "distributed.py", "cuda_graph.py", "rank_a_pool.py"}
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(RUNS) | elsewhere


def _compiler():
    from shutil import which

    return which("g++") or which("clang++") or sys.platform == "darwin"
