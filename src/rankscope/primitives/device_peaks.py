"""Peak rates of devices: dense peaks by device name and data type, from vendors' datasheets.

The figures, their sources and dates are in `device_peaks.json`. A wrong peak is worse than none, so it has no figures
that could not be verified, no devices that PyTorch sees as a full card or a part of one depending on the environment
(Intel's Max series), and no parts of a card (MIG).

In: a device's name and a data type. Out: FLOP/s, or None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

_PART = re.compile(r"\bMIG\b")


@cache
def _devices() -> tuple[dict[str, Any], ...]:
    text = (resources.files("rankscope.primitives") / "device_peaks.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["devices"])


_NVIDIA = re.compile(r"NVIDIA|Tesla|Quadro|GeForce|TITAN|RTX|GTX", re.IGNORECASE)
_AMPERE, _VOLTA = 8, 7
"""Compute capabilities: of the first NVIDIA devices with bfloat16, and of the first with tensor cores."""


def half_precision(devices: Iterable[Mapping[str, Any]]) -> str | None:
    """The 16-bit type that the devices have fast matrix products of: `bfloat16` where all have it, else `float16`.

    Args:
        devices: what the profiler recorded of each device: ``name``, ``compute`` (major and minor capability).

    None if it is not known of a device.
    """
    types = {_half_precision(device) for device in devices}
    return None if None in types or not types else min(types, key=("float16", "bfloat16").index)


def _half_precision(device: Mapping[str, Any]) -> str | None:
    name, major = str(device.get("name") or ""), (device.get("compute") or [None])[0]
    known = next((number for number in ("bfloat16", "float16") if peak_flops(name, number) is not None), None)
    if known is not None:
        return known
    if not _NVIDIA.search(name) or not isinstance(major, int):
        return None
    return "bfloat16" if major >= _AMPERE else "float16" if major >= _VOLTA else None


def device_model(devices: Iterable[Mapping[str, Any]], used: Collection[int]) -> str | None:
    """The model of the devices in use; None if it is not recorded, or they differ.

    Args:
        devices: what the profiler recorded of each device: ``id``, ``name``.
        used: indices of the devices in use; if none of them is recorded, all devices count.
    """
    models = {device.get("id"): device.get("name") for device in devices}
    names = {models[index] for index in used if models.get(index)} or set(models.values())
    return next(iter(names)) if len(names) == 1 else None


def peak_flops(device: str | None, number: str | None, *, tensor_cores: bool = False) -> float | None:
    """The peak FLOP/s of a device; None if the device, or its peak for the type, is unknown.

    Args:
        device: the device's name.
        number: `float64`, `float32`, `float16`, `bfloat16` or `float8`.
        tensor_cores: whether the work ran on tensor cores, which on NVIDIA treat 32-bit numbers as TF32.
    """
    if device is None or number is None or _PART.search(device):
        return None
    peaks = next((known for known in _devices() if re.search(known["name"], device, re.IGNORECASE)), None)
    if peaks is None:
        return None
    if number == "float32" and tensor_cores and not peaks["name"].startswith("MI"):
        number = "tf32"
    value = peaks.get(number)
    return None if value is None else float(value) * 1e12
