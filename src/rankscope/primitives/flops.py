"""Floating-point operations of an operator, from the shapes of its inputs.

A multiplication and an addition count as two. The formulas are those of `torch.utils.flop_counter`, with the output's
shape computed from stride, padding and dilation, because a trace does not record it. Grouped convolutions count the
multiplications within groups; bias, softmax and masks do not count. Causal masks are not recorded, so attention counts
in full, as there.

    mm, addmm          2·m·k·n                     bmm, baddbmm       2·b·m·k·n
    convolution        2·batch·|output|·|weight|   (transposed: |input|), |·| the spatial extent, the weight's elements
    its backward       as much for each of the gradients of input and weight that is made
    attention          2·b·h·q·k·(d + v)           its backward       2·b·h·q·k·(3d + 2v)

In: an operator's name and the shapes of its inputs. Out: FLOPs, None if unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import polars as pl

from rankscope.primitives.shapes import parsed_list

Shape = list[int]
Formula = Callable[[Sequence[Any], Sequence[str]], int]

# Larger numbers are not credible.
_MOST = 1 << 62


class _Unfit(ValueError):
    """Shapes that are not possible for the operator."""


def operator_flops(operators: pl.DataFrame) -> pl.Series:
    """FLOPs of each operator; null if there is no formula, or its shapes are not recorded.

    Args:
        operators: name, input_dims, concrete_inputs.
    """
    known = operators.select("name", "input_dims", "concrete_inputs").filter(
        pl.col("input_dims").is_not_null() & pl.col("name").is_in(list(_FORMULAS))
    )
    # A job has few distinct shapes: each is computed once.
    shapes = known.unique()
    counted = pl.Series("flops", [_flops(*row) for row in shapes.iter_rows()], dtype=pl.Float64)
    keys = ["name", "input_dims", "concrete_inputs"]
    joined = operators.select(keys).join(
        shapes.with_columns(counted), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    return joined["flops"]


def _flops(name: str, dims: str, concrete: str | None) -> int | None:
    inputs, values = parsed_list(dims), parsed_list(concrete or "[]")
    if inputs is None or values is None:
        return None
    try:
        flops = _FORMULAS[name](inputs, [str(value) for value in values])
    except (_Unfit, IndexError, ValueError, TypeError, RecursionError):
        return None
    return flops if 0 <= flops < _MOST else None


def _shape(inputs: Sequence[Any], index: int, dimensions: int | None = None) -> Shape:
    shape = inputs[index]
    sized = isinstance(shape, list) and bool(shape) and all(type(size) is int and size >= 0 for size in shape)
    if not sized or (dimensions is not None and len(shape) != dimensions):
        raise _Unfit
    return list(shape)


def _numbers(concrete: Sequence[str], index: int, count: int) -> Shape:
    """A list of numbers as torch writes it, `[2, 2]` or `2`; a single one applies to all dimensions."""
    numbers = [int(number) for number in re.findall(r"-?\d+", concrete[index])]
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count:
        raise _Unfit
    return numbers


def _product(first: int, batched: bool = False) -> Formula:
    def count(inputs: Sequence[Any], concrete: Sequence[str]) -> int:
        *batch, rows, inner = _shape(inputs, first, 3 if batched else 2)
        *others, other, columns = _shape(inputs, first + 1, 3 if batched else 2)
        if inner != other or batch != others:
            raise _Unfit
        return 2 * prod(batch) * rows * inner * columns

    return count


def _vector(first: int) -> Formula:
    def count(inputs: Sequence[Any], concrete: Sequence[str]) -> int:
        return 2 * prod(_shape(inputs, first, 2))

    return count


def _convolution(stride: int, padding: int, dilation: int, transposed: int | bool | None = None) -> Formula:
    """A formula by the positions of its arguments.

    Args:
        transposed: the position of that argument; or whether it always, or never, is transposed.
    """

    def count(inputs: Sequence[Any], concrete: Sequence[str]) -> int:
        data, weight = _shape(inputs, 0), _shape(inputs, 1)
        spatial, kernel = data[2:], weight[2:]
        if len(data) != len(weight) or not spatial:
            raise _Unfit
        backwards = transposed is True or (
            transposed is not None and transposed is not False and concrete[transposed] in ("True", "1", "true")
        )
        extent = spatial
        if not backwards:
            steps, wide = (_numbers(concrete, index, len(spatial)) for index in (stride, dilation))
            if "valid" in concrete[padding] or "same" in concrete[padding]:
                same = "same" in concrete[padding]
                edges = [w * (k - 1) if same else 0 for w, k in zip(wide, kernel, strict=True)]
            else:
                edges = [2 * edge for edge in _numbers(concrete, padding, len(spatial))]
            if min(steps) < 1:
                raise _Unfit
            extent = [
                max((size + edge - w * (k - 1) - 1) // step + 1, 0)
                for size, edge, w, k, step in zip(spatial, edges, wide, kernel, steps, strict=True)
            ]
        return 2 * data[0] * prod(extent) * prod(weight)

    return count


def _convolution_backward(inputs: Sequence[Any], concrete: Sequence[str]) -> int:
    gradient, data, weight = (_shape(inputs, index) for index in range(3))
    spatial = data[2:] if concrete[7] in ("True", "1", "true") else gradient[2:]
    output_mask = re.findall(r"True|False|true|false|[01]", concrete[10])
    if len(output_mask) != 3 or len(data) != len(weight):
        raise _Unfit
    gradients = sum(flag.lower() in ("true", "1") for flag in output_mask[:2])
    return gradients * 2 * data[0] * prod(spatial) * prod(weight)


def _attention(first: int, heads: int, query: int, key: int) -> Formula:
    """A formula by the position of the first of three inputs.

    Args:
        heads: the dimension of the heads in a shape.
        query: how often the head size of query and key counts: 1 forward, 3 backward.
        key: how often that of the value counts: 1 forward, 2 backward.
    """
    length = 3 - heads

    def count(inputs: Sequence[Any], concrete: Sequence[str]) -> int:
        q, k, v = (_shape(inputs, first + index, 4) for index in range(3))
        if not q[0] == k[0] == v[0] or q[3] != k[3] or k[length] != v[length] or k[heads] < 1 or q[heads] % k[heads]:
            raise _Unfit
        return 2 * q[0] * q[heads] * q[length] * k[length] * (query * q[3] + key * v[3])

    return count


_SDPA = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable")
_FORMULAS: dict[str, Formula] = {
    "aten::mm": _product(0),
    "aten::_int_mm": _product(0),
    "aten::_scaled_mm": _product(0),
    "aten::addmm": _product(1),
    "aten::addmm_": _product(1),
    "aten::_addmm_activation": _product(1),
    "aten::bmm": _product(0, batched=True),
    "aten::baddbmm": _product(1, batched=True),
    "aten::baddbmm_": _product(1, batched=True),
    "aten::addbmm": _product(1, batched=True),
    "aten::mv": _vector(0),
    "aten::addmv": _vector(1),
    "aten::addmv_": _vector(1),
    **{f"aten::conv{n}d": _convolution(3, 4, 5) for n in (1, 2, 3)},
    **{f"aten::conv_transpose{n}d": _convolution(3, 4, 7, True) for n in (1, 2, 3)},
    **{f"aten::{name}": _convolution(3, 4, 5, 6) for name in ("convolution", "_convolution")},
    "aten::convolution_overrideable": _convolution(3, 4, 5, 6),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::convolution_backward": _convolution_backward,
    **{f"aten::_scaled_dot_product_{kind}": _attention(0, 1, 1, 1) for kind in _SDPA},
    **{f"aten::_scaled_dot_product_{kind}_backward": _attention(1, 1, 3, 2) for kind in _SDPA},
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 1, 1, 1),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 1, 3, 2),
    "aten::_flash_attention_forward": _attention(0, 2, 1, 1),
    "aten::_flash_attention_backward": _attention(1, 2, 3, 2),
    "aten::_efficient_attention_forward": _attention(0, 2, 1, 1),
    "aten::_efficient_attention_backward": _attention(1, 2, 3, 2),
    "flash_attn::_flash_attn_forward": _attention(0, 2, 1, 1),
}
