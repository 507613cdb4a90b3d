"""Shapes and types from their JSON text: worked out by hand."""

from __future__ import annotations

import pytest

from rankscope.primitives.shapes import (
    element_bytes,
    first_argument_type,
    first_type,
    floating_point_type,
    parsed_list,
    tensor_elements,
    total_elements,
)


@pytest.mark.parametrize("text", [None, "", "null", "{}", "3", "[1", "nonsense", "[" * 100_000])
def test_text_that_is_not_a_list(text: str | None) -> None:
    assert parsed_list(text) is total_elements(text) is total_elements(text, argument=0) is None
    assert (
        tensor_elements(text, 0) is first_type(text) is first_argument_type(text) is floating_point_type(text) is None
    )


def test_elements() -> None:
    assert parsed_list("[[2, 3], []]") == [[2, 3], []]
    assert total_elements("[[2,3],[[4],[5,1]]]") == 15
    assert total_elements("[[2,3],[[4],[5,1]]]", argument=1) == 9
    assert total_elements("[[],[]]") is total_elements("[[2,3]]", argument=1) is None
    assert total_elements("[16,2,1]") == 32
    assert total_elements("[" * 800 + "7" + "]" * 800) == 7


def test_more_elements_than_memory_has_are_none() -> None:
    """With eight bytes each, their size would not fit into 64 bits."""
    assert total_elements(f"[[{1 << 61}]]") is tensor_elements(f"[[{1 << 30},{1 << 29}]]", 0) is None


def test_elements_of_one_argument() -> None:
    assert tensor_elements("[[2,3],[[4],[]]]", 0) == 6
    assert tensor_elements("[[2,3],[[4],[]]]", 1) == 5
    assert tensor_elements("[[2,3],[[4],[]]]", 2) is tensor_elements("[[]]", 0) is None
    assert tensor_elements("[[[2],3]]", 0) is tensor_elements("[[-1]]", 0) is None


def test_types() -> None:
    assert first_type('["TensorList","","float"]') == "float"
    assert first_argument_type('["TensorList","float"]') is None
    assert first_argument_type('["c10::Half"]') == "c10::Half"
    assert floating_point_type('["","c10::BFloat16","float"]') == "bfloat16"
    assert floating_point_type('["Scalar","long int"]') is None


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        ("Float", 4), ("Half", 2), ("BFloat16", 2), ("Double", 8), ("Long", 8), ("Int", 4), ("Byte", 1), ("Bool", 1),
        ("c10::BFloat16", 2), ("c10::Half", 2), ("torch.bfloat16", 2), ("float", 4), ("double", 8),
        ("long int", 8), ("unsigned char", 1), ("signed char", 1), ("int", 4), ("bool", 1), ("long long", 8),
        ("Float8_e4m3fn", 1), ("Float8_e5m2", 1), ("Float8_e4m3fnuz", 1), ("c10::Float8_e4m3fn", 1),
        ("Float4_e2m1fn_x2", 1), ("ComplexFloat", 8), ("c10::complex<double>", 16), ("UInt16", 2), ("UInt64", 8),
        ("QInt8", 1), ("", None), (None, None), ("Undefined", None), ("TensorList", None),
    ],
)  # fmt: skip
def test_widths(dtype: str | None, width: int | None) -> None:
    assert element_bytes(dtype) == width
