"""CIFAR-10 from a local folder, in the dataset's "python" or "binary" form. Nothing is downloaded.

The python form is pickle files. The unpickler here only builds plain containers and raw arrays, so a manipulated file
cannot run code.

In: a folder. Out: images and labels as tensors.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import torch
from torch.utils.data import Dataset

from rankscope.errors import ConfigError

IMAGE_BYTES = 3 * 32 * 32
_RECORD = 1 + IMAGE_BYTES
_MAX_FILE_BYTES = 256 << 20
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Cifar10(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The training images, normalized, as (3, size, size) float32, with their labels.

    Args:
        folder: contains ``data_batch_1`` … or ``data_batch_1.bin`` …, itself or in ``cifar-10-batches-py`` or
            ``cifar-10-batches-bin``.
        size: height and width of an image in pixels.

    Raises:
        ConfigError: there are no such files, or they are not CIFAR-10 batches.
    """

    def __init__(self, folder: str | Path, size: int = 32) -> None:
        parts = [read_batch(path) for path in _batches(Path(folder))]
        self._images = torch.cat([images for images, _ in parts])
        self._labels = torch.cat([labels for _, labels in parts])
        self._size = size
        self._mean = torch.tensor(_MEAN).view(3, 1, 1)
        self._std = torch.tensor(_STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = (self._images[index].float() / 255 - self._mean) / self._std
        if self._size != 32:
            image = torch.nn.functional.interpolate(image[None], size=(self._size, self._size), mode="bilinear")[0]
        return image, self._labels[index]


def read_batch(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Read images (N, 3, 32, 32) as bytes, and labels (N,), from a file of either form.

    Raises:
        ConfigError: it is not a CIFAR-10 batch.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ConfigError("too large for a CIFAR-10 batch", path=path)
    content = path.read_bytes()
    if path.suffix == ".bin":
        if not content or len(content) % _RECORD:
            raise ConfigError(f"not a CIFAR-10 batch: its size is not a multiple of {_RECORD} bytes", path=path)
        records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
        images, labels = records[:, 1:].clone(), records[:, 0].long()
    else:
        images, labels = _read_pickle(path, content)
    if labels.numel() != images.shape[0] or bool((labels < 0).any()) or bool((labels > 9).any()):
        raise ConfigError("not a CIFAR-10 batch: its labels are not 0 to 9, one per image", path=path)
    return images.view(-1, 3, 32, 32), labels


def _batches(folder: Path) -> list[Path]:
    for candidate in (folder, folder / "cifar-10-batches-py", folder / "cifar-10-batches-bin"):
        for pattern in ("data_batch_?", "data_batch_?.bin"):
            if paths := sorted(candidate.glob(pattern)):
                return paths
    raise ConfigError(
        "no CIFAR-10 here", path=folder, hint="name the folder with data_batch_1 … (python or binary version)"
    )


def _read_pickle(path: Path, content: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:
        raise ConfigError(f"not a CIFAR-10 batch: {error}", path=path) from error
    if not isinstance(batch, dict):
        raise ConfigError("not a CIFAR-10 batch: it is not a dictionary", path=path)
    data, labels = batch.get(b"data", batch.get("data")), batch.get(b"labels", batch.get("labels"))
    raw = data.content if isinstance(data, _RawArray) else None
    known = [n for n in labels if isinstance(n, int)] if isinstance(labels, list) else []
    if not isinstance(raw, bytes) or not known or labels != known or len(raw) != len(known) * IMAGE_BYTES:
        raise ConfigError("not a CIFAR-10 batch: it has no images with one label each", path=path)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, IMAGE_BYTES), torch.tensor(known)


class _RawArray:
    """A numpy array, as its bytes."""

    content: object = None

    def __setstate__(self, state: object) -> None:
        # (version, shape, dtype, is_fortran, bytes)
        if isinstance(state, tuple) and len(state) == 5 and not state[3]:
            self.content = state[4]


class _Ignored:
    """A numpy dtype: CIFAR-10 is bytes."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _encode(text: object, encoding: object = "latin1") -> bytes:
    return str(text).encode("latin1")


_KNOWN: dict[str, object] = {
    "numpy.core.multiarray _reconstruct": lambda *_arguments: _RawArray(),
    "numpy._core.multiarray _reconstruct": lambda *_arguments: _RawArray(),
    "numpy ndarray": _RawArray,
    "numpy dtype": _Ignored,
    "_codecs encode": _encode,
}
"""The names in a pickled array of bytes, and their replacements."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        """The replacement of a name, or an error: nothing is imported."""
        try:
            return _KNOWN[f"{module} {name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no batch needs") from None
