"""The kit for accelerators: what is true on the CPU must be true on a device. ``make gpu-check`` runs it with nothing
else; in the ordinary suite, on a machine without a device, the parts that a CPU can run do, the others skip."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def accelerator() -> str | None:
    """``cuda`` (also ROCm) or ``xpu``, if torch finds a device."""
    return next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), None)


@pytest.fixture
def device() -> torch.device:
    """The accelerator, else the CPU."""
    return torch.device(accelerator() or "cpu")


@pytest.fixture
def cuda() -> torch.device:
    """A device of NVIDIA's or AMD's; the test skips without one."""
    if accelerator() != "cuda":
        pytest.skip("no CUDA or ROCm device")
    return torch.device("cuda")


class Training:
    """Steps of a small model on a device: two linear layers and a GELU."""

    def __init__(self, device: torch.device, *, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 16)).to(device)
        # On the CPU without a C++ compiler: the regions are the same.
        backend = "inductor" if device.type != "cpu" else "aot_eager"
        self._forward = torch.compile(self.model, backend=backend) if compiled else self.model
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(device)
        self.losses: list[float] = []

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss = self._forward(self._batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()


@pytest.fixture
def training(device: torch.device) -> Training:
    return Training(device)
