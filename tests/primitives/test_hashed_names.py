"""Names that differ only in a hash, and those that look as if they did."""

from __future__ import annotations

import polars as pl
import pytest

from rankscope.primitives.hashed_names import names_without_hashes, without_hashes

GRAPH = "## Call CompiledFxGraph {} ##"
OF_RANK = "f2aiu4qm5fcyubkv72pnimd54hl7hv7etkz6oosswdczjf4j6xgr", "fdnsmju4secdewhnbdy52ccv2xrvajccrpufwparxh3ygo7hnrbu"


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        ([GRAPH.format(each) for each in OF_RANK], "## Call CompiledFxGraph … ##"),
        (["/tmp/torchinductor_a/{}.py(12): call".format("0f" * 16)], "/tmp/torchinductor_a/….py(12): call"),
        # An argument may be divisible by 16 on one rank only, and the tenth has two digits.
        (["triton__0d1d23d", "triton__0d1d2d3d", "triton__0d12c3de"], "triton__0…3"),
        (["kernel_0d1d2d3d4d5d6d7d8d9d10d", "kernel_0d1d2d3d4d5d6d7d8d9d10"], "kernel_0…10"),
        # So many arguments that their suffix could be a hash.
        (
            ["triton__" + "".join(f"{n}d" for n in range(16)), "triton__0d" + "".join(map(str, range(1, 16)))],
            "triton__0…15",
        ),
    ],
)
def test_names_that_differ_in_a_hash_are_one(names, shared):
    assert {without_hashes(name) for name in names} == {shared}


@pytest.mark.parametrize(
    "name",
    [
        "conv_2d3d",  # arguments are numbered from 0
        "upsample_0d",  # nothing says that one is a list of arguments
        "block_0d2d",
        "interpolate_0d1d3d",
        "layer_012",
        "triton_poi_fused_add_0",
        "triton_poi_fused_add_1",
        "triton_red_fused_mean_10",
        "void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x4_tn_align8>",
        "aten::add",
        "deadbeef",
    ],
)
def test_other_names_stay_as_they_are(name):
    assert without_hashes(name) == name


def test_kernels_with_other_numbers_of_arguments_are_apart():
    assert without_hashes("triton__0d1d2d") != without_hashes("triton__0d1d2d3d")


def test_a_column_keeps_nulls_and_its_order():
    names = pl.Series(["b", None, GRAPH.format(OF_RANK[0]), "b", GRAPH.format(OF_RANK[1])])
    graph = "## Call CompiledFxGraph … ##"
    assert names_without_hashes(names).to_list() == ["b", None, graph, "b", graph]
