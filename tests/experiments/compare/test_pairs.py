"""Which row is which: by name, by what launched it, by what a compiler says that it fused."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.experiments.compare.pairs import components, fused_operators, match_keys
from rankscope.experiments.compare.samples import KEYS

Key = tuple[str, str, str | None, str | None]


def keys(*rows: Key) -> pl.DataFrame:
    return pl.DataFrame([(*row, "ns") for row in rows], schema=dict.fromkeys(KEYS, pl.String), orient="row")


def found(a: list[Key], b: list[Key]) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    pairs = match_keys(keys(*a), keys(*b))
    joined = pairs.keys.join(pairs.pairs, on="pair")
    return {
        (
            part["method"][0],
            tuple(sorted(part.filter(pl.col("side") == 0)["name"])),
            tuple(sorted(part.filter(pl.col("side") == 1)["name"])),
        )
        for part in joined.partition_by("pair")
    }


def test_each_level_takes_what_is_left() -> None:
    a: list[Key] = [
        ("kernels", "gemm_a", "[[1]]", "aten::mm"),
        ("kernels", "relu", "[[1]]", "aten::relu"),
        ("kernels", "softmax_small", "[[2]]", "aten::softmax"),
        ("kernels", "gone", None, None),
        ("operators", "aten::mm", "[[1]]", None),
        ("operators", "aten::add", "[[4]]", None),
    ]
    b: list[Key] = [
        ("kernels", "Cijk_1", "[[1]]", "aten::mm"),
        ("kernels", "Cijk_2", "[[1]]", "aten::mm"),
        ("kernels", "relu", "[[1]]", "aten::relu"),
        ("kernels", "softmax_large", "[[3]]", "aten::softmax"),
        ("operators", "aten::mm", "[[1]]", None),
        ("operators", "aten::add", "[[8]]", None),
    ]
    assert found(a, b) == {
        ("operator and shapes", ("gemm_a",), ("Cijk_1", "Cijk_2")),
        ("name", ("relu",), ("relu",)),
        ("operator", ("softmax_small",), ("softmax_large",)),
        ("alone", ("gone",), ()),
        ("name", ("aten::mm",), ("aten::mm",)),
        ("other shapes", ("aten::add",), ("aten::add",)),
    }


def test_operators_are_not_paired_by_another_name() -> None:
    assert found([("operators", "aten::a", "[]", None)], [("operators", "aten::b", "[]", None)]) == {
        ("alone", ("aten::a",), ()),
        ("alone", (), ("aten::b",)),
    }


def test_fused_names_list_their_operators() -> None:
    known = ["add", "gelu", "native_layer_norm", "layer_norm", "mul", "_to_copy", "addmm"]
    assert fused_operators("triton_poi_fused_add_gelu_0", known) == ["add", "gelu"]
    assert fused_operators("triton_per_fused_add_native_layer_norm_3", known) == ["add", "native_layer_norm"]
    assert fused_operators("triton_red_fused__to_copy_mul_12", known) == ["_to_copy", "mul"]
    assert fused_operators("cpp_fused_addmm_gelu_1", known) == ["addmm", "gelu"]
    assert fused_operators("triton_poi_fused_unheard_of_0", known) == []
    assert fused_operators("ampere_sgemm", known) == []


def test_fused_kernels_find_the_operators_that_vanished() -> None:
    a: list[Key] = [
        ("kernels", "vectorized_add", "[[1]]", "aten::add"),
        ("kernels", "gelu_kernel", "[[1]]", "aten::gelu"),
        ("kernels", "layer_norm_kernel", "[[1]]", "aten::native_layer_norm"),
    ]
    b: list[Key] = [
        ("kernels", "triton_poi_fused_add_gelu_0", "[[1]]", "triton_poi_fused_add_gelu_0"),
        ("kernels", "triton_per_fused_native_layer_norm_1", "[[1]]", "triton_per_fused_native_layer_norm_1"),
    ]
    assert found(a, b) == {
        ("fused", ("gelu_kernel", "vectorized_add"), ("triton_poi_fused_add_gelu_0",)),
        ("fused", ("layer_norm_kernel",), ("triton_per_fused_native_layer_norm_1",)),
    }


def test_an_operator_in_two_fused_kernels_joins_them() -> None:
    groups = components(["aten::add", "aten::mul_", "aten::relu"], ["fused_add_mul_0", "fused_mul_relu_1"])
    assert len(set(groups.values())) == 1
    assert set(groups) == {"aten::add", "aten::mul_", "aten::relu", "fused_add_mul_0", "fused_mul_relu_1"}


names = st.sampled_from(["a", "b", "fused_a_b_0", "c"])
key = st.tuples(
    st.sampled_from(["kernels", "operators"]), names, st.sampled_from([None, "[1]"]), st.sampled_from([None, "aten::a"])
)


@settings(deadline=None, max_examples=60)
@given(st.lists(key, unique=True, max_size=8), st.lists(key, unique=True, max_size=8))
def test_every_key_has_one_place(a: list[Key], b: list[Key]) -> None:
    pairs = match_keys(keys(*a), keys(*b))
    assert pairs.keys.height == len(a) + len(b)
    sections = pairs.keys.group_by("pair").agg(pl.col("section").n_unique())
    assert sections.filter(pl.col("section") > 1).is_empty()
    both = pairs.keys.group_by("pair").agg(pl.col("side").n_unique().alias("sides")).join(pairs.pairs, on="pair")
    assert (both.filter(pl.col("method") == "alone")["sides"] == 1).all()
    assert (both.filter(pl.col("method") != "alone")["sides"] == 2).all()
