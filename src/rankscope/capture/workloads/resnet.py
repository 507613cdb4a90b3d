"""The ResNet-18 network (He et al., 2015, arXiv:1512.03385), used if torchvision is not installed.

In: images. Out: logits.
"""

from __future__ import annotations

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Feature maps in, feature maps out."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + shortcut
        return torch.relu_(out)


class ResNet18(nn.Module):
    """The network. Its modules have torchvision's names, so that torchvision's weights fit."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels_in = 64
        for index, channels in enumerate((64, 128, 256, 512), start=1):
            stride = 1 if index == 1 else 2
            blocks = [BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1)]
            setattr(self, f"layer{index}", nn.Sequential(*blocks))
            channels_in = channels
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images in, class scores out."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for index in range(1, 5):
            x = getattr(self, f"layer{index}")(x)
        scores: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return scores


def resnet18(num_classes: int = 1000) -> nn.Module:
    """torchvision's ResNet-18 if installed, else the same network from here; untrained."""
    try:
        from torchvision.models import resnet18 as torchvisions
    except (ImportError, RuntimeError):  # a torchvision for another torch raises RuntimeError at import
        return ResNet18(num_classes)
    model: nn.Module = torchvisions(weights=None, num_classes=num_classes)
    return model
