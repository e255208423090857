"""The benchmarks of a training step: kernels are told apart by name, and variants are timed one at a time."""

import json
import queue
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import __main__ as benchmarks
from benchmarks import profiling, speedups
from effdeg_lab.models import ViT


def test_rows_of_other_variants_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "FOLDER", tmp_path)

    def keep(*values, join):
        rows = [{"variant": name, "method": "plain", "ratio": ratio} for name, ratio in values]
        benchmarks._keep("engine_speedups", {"rows": rows}, join=join)
        kept = json.loads((tmp_path / f"{benchmarks.device().type.replace('cuda', 'gpu')}.json").read_text())
        return {row["variant"]: row["ratio"] for row in kept["cases"]["engine_speedups"]["rows"]}

    assert keep(("baseline", 1), ("flat", 0.9), join=False) == {"baseline": 1, "flat": 0.9}
    assert keep(("baseline", 1), ("flat", 0.8), ("fused", 0.5), join=True) == {"baseline": 1, "flat": 0.8, "fused": 0.5}
    assert keep(("baseline", 1), join=False) == {"baseline": 1}


KERNELS = {
    "fused kernels": [
        "mlp_forward",
    ],
    "matrix products": [
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>",
        "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
        "triton_tem_fused_addmm_gelu_view_5",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::bfloat16_t>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x64x64",
        "void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*, unsigned int)",
    ],
    "normalization and elementwise": [
        "triton_per_fused_add_native_layer_norm_12",
        "triton_poi_fused_addmm_gelu_view_5",
        "triton_poi_fused__scaled_dot_product_flash_attention_clone_9",
    ],
    "casts and copies": [
        "triton_poi_fused__to_copy_3",
        "triton_poi_fused__to_copy__unsafe_view_clone_permute_view_0",
        "Memset (Device)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<OpaqueType<2u>>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>",
    ],
    "reductions": [
        "triton_red_fused_sum_view_33",
        "void at::native::reduce_kernel<128, 4, ReduceOp<float, func_wrapper_t<float, sum_functor>>>",
    ],
    "optimizer and clipping": [
        "void at::native::reduce_kernel<512, 1, ReduceOp<float, NormTwoOps<float>>>",
        "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    ],
    "batch and points": [
        "triton_poi_fused_add_addcmul_arange_div_fill_lift_fresh_mul_pow_rand_select_sin_sub_1",
        "triton_poi_fused__to_copy_div_index_sub_4",
        "triton_poi_fused_lt_rand_1",
        "void at_cuda_detail::cub::DeviceRadixSortSingleTileKernel<Policy800, false, int>",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<>",
    ],
    "other": [
        "a_kernel_of_tomorrow",
    ],
}


@pytest.mark.parametrize("group", KERNELS)
def test_kernels_are_told_apart_by_name(group):
    for name in KERNELS[group]:
        long = name + "<" + 900 * "x"
        assert profiling.classify(name) == group
        assert profiling.classify(profiling.shorten(long)) == profiling.classify(long)


@pytest.mark.parametrize("seen", [True, False], ids=["replayed", "uncaptured"])
def test_a_profile_adds_up_to_the_step(seen):
    """Per step two products of 30 µs, one cast of 5 µs and a copy of 1 µs; other steps are marked differently."""

    def mark(name, start):
        return {"cat": "user_annotation", "name": name, "ts": start, "dur": 1000.0}

    def run(start, factor):
        kernels = [("kernel", "nvjet_a", 10), ("kernel", "nvjet_b", 20), ("kernel", "triton_poi_fused__to_copy_1", 5)]
        kernels.append(("gpu_memcpy", "Memcpy DtoD", 1))
        return [
            {"cat": kind, "name": name, "ts": start + number, "dur": factor * time}
            for number in range(profiling.STEPS)
            for kind, name, time in kernels
        ]

    events = [{"name": "process_name", "ph": "M", "ts": 0}, mark("replayed", 0.0), mark("uncaptured", 2000.0)]
    events += [{"cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 99.0}, *run(2000.0, 1 if not seen else 7)]
    events += run(100.0, 1) if seen else []
    found = profiling.summarize(events, milliseconds=0.05)
    assert found["source"] == ("replayed" if seen else "uncaptured")
    assert found["microseconds"] == {"matrix products": 30, "gaps": 14, "casts and copies": 6}
    assert sum(found["microseconds"].values()) == pytest.approx(50)
    assert found["kernels"] == {"matrix products": 2, "casts and copies": 2}
    assert list(found["kernel_times"].items())[:2] == [("nvjet_b", 20), ("nvjet_a", 10)]


def test_the_floor_counts_the_products_of_a_step():
    model, images = ViT(), 2
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.randn(images, 3, 32, 32)).sum().backward()
    parameters = sum(each.numel() for each in model.parameters())
    found = profiling.count_work(images, 65, parameters, (790e12, 4.3e12))
    assert found["teraflop"] * 1e12 == pytest.approx(counter.get_total_flops())
    assert found["floor_of_products"] < found["floor_fused"] < found["floor_unfused"]
    assert min(profiling.measure_rates()) > 0


CHILD = """
import json, sys, time
def beat(count):
    beats = []
    for _ in range(count):
        beats.append(time.monotonic())
        time.sleep(0.01)
    return beats
"""


def test_variants_are_timed_one_at_a_time_and_failures_stay_alone(monkeypatch):
    monkeypatch.setattr(speedups, "AT_ONCE", 5)
    turn = """
        before = beat({before})
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps({{"before": before, "turn": beat(30)}}), flush=True)
    """
    codes = {
        "early": turn.format(before=200),
        "late": turn.format(before=600),
        "broken": "raise NotImplementedError('no such part')",
        "stuck": "time.sleep(600)",
        "endless": "print('ready', flush=True); time.sleep(600)",
        "half": "print('noise')\nprint('ready', flush=True)\nprint('{\"milliseconds\": 5}', flush=True)\n1 / 0",
    }
    commands = {(name, "plain"): [sys.executable, "-c", CHILD + textwrap.dedent(code)] for name, code in codes.items()}
    rows, skipped = {}, []
    monkeypatch.setattr(speedups, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(skipped)))
    for (name, _), row in speedups.run_in_turn(commands, turn=3, total=300):
        rows[name] = row
        if len(rows) == len(codes) - 1:  # only the stuck one is left: do not wait for the limit
            skipped.append(300)
    assert set(rows) == set(codes)
    assert rows["broken"]["error"] == "NotImplementedError: no such part"
    assert rows["stuck"]["error"] == "not measured within 300 s"
    assert rows["endless"]["error"] == "not done after 3 s"
    assert rows["half"]["milliseconds"] == 5  # a profile that fails does not take the time along
    assert rows["half"]["error"] == "ZeroDivisionError: division by zero"
    first, second = rows["early"], rows["late"]
    assert first["turn"][-1] < second["turn"][0]
    # Those that are not ready yet stand still meanwhile.
    start, end = first["turn"][0], first["turn"][-1]
    assert second["before"][0] < start
    assert [beat for beat in second["before"] if start < beat < end] == []


def test_a_variant_that_ends_before_its_turn_is_reported():
    lines = queue.Queue()
    process = speedups._Process([sys.executable, "-c", "print('ready'); 1 / 0"], ("gone", "plain"), lines)
    assert [lines.get(timeout=60)[1], lines.get(timeout=60)[1]] == ["ready", None]
    process._process.wait()
    process.start_turn()
    assert process.end() == "ZeroDivisionError: division by zero"


def test_a_variant_is_measured_on_this_machine():
    """On a CPU a small network; what differs between variants is on a GPU."""
    (row,) = dict(speedups.run_in_turn({("64 tokens", "plain"): speedups.make_command("64 tokens", "plain")})).values()
    assert row["milliseconds"] > 0
    assert row["slowest"] >= row["milliseconds"]


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match=r"not a variant: flatt\. There are: baseline; "):
        speedups.engine_speedups(["flatt"])
