"""The workloads train: the networks are the known ones, the loss falls, the data are read safely."""

from __future__ import annotations

import codecs
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankscope.capture.workloads import fsdp, resnet18, transformer
from rankscope.capture.workloads.cifar10 import IMAGE_BYTES, Cifar10, read_batch
from rankscope.capture.workloads.job import Settings, pick_device
from rankscope.capture.workloads.resnet import ResNet18
from rankscope.errors import ConfigError
from rankscope.rundir.options import options_of


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") or name.startswith(("TORCHELASTIC_", "RANKSCOPE_")):
            monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_resnet18_is_the_known_network():
    model = ResNet18()
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    assert len(model.state_dict()) == 122
    assert "layer2.0.downsample.1.running_var" in model.state_dict()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
    assert sum(p.numel() for p in ResNet18(10).parameters()) == 11_689_512 - 990 * 513


def test_resnet18_trains_and_is_profiled(tmp_path, capsys):
    settings = Settings(steps=12, batch_size=4, device="cpu", save_dir=str(tmp_path), wait=1, warmup=1, active=2)
    outcome = resnet18.train(settings, image_size=32)
    assert (outcome.steps, outcome.parameters) == (12, 11_689_512)
    assert outcome.last_loss < outcome.first_loss
    assert [p.name for p in tmp_path.glob("*.trace*")] == ["rank0_iter2_3.trace.json.gz"]
    assert capsys.readouterr().out.startswith("resnet18: 12 steps on 1 rank (cpu), ")


def test_a_seed_gives_the_same_losses():
    settings = Settings(steps=2, batch_size=2, device="cpu", profile=False, seed=3)
    assert resnet18.train(settings, image_size=32).last_loss == resnet18.train(settings, image_size=32).last_loss


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformer_trains(dtype):
    settings = Settings(steps=6, batch_size=4, dtype=dtype, device="cpu", profile=False)
    outcome = transformer.train(settings, d_model=32, layers=1)
    assert outcome.last_loss < outcome.first_loss


@pytest.mark.parametrize("fsdp1", [False, True])
def test_fsdp_trains_alone(fsdp1):
    settings = Settings(steps=4, batch_size=2, device="cpu", profile=False)
    outcome = fsdp.train(settings, fsdp1=fsdp1, width=32, layers=1, tokens=16)
    assert outcome.last_loss < outcome.first_loss
    assert not torch.distributed.is_initialized()


LEAVES_NO_THREAD = """
import time
from pathlib import Path
from rankscope.capture.workloads import fsdp
from rankscope.rundir.options import options_of
from rankscope.capture.workloads.job import Settings

def gloos():
    tasks = Path("/proc/self/task").glob("*/comm")
    return [task.parent.name for task in tasks if "gloo" in task.read_text()]

def train():
    settings = Settings(steps=2, batch_size=2, device="cpu", profile=False)
    fsdp.train(settings, fsdp1=True, width=32, layers=1, tokens=16)

# Torch itself keeps the group of a process's first backward pass (2.13), whatever the model is.
train()
time.sleep(1)
before = set(gloos())
train()
# A thread that was asked to end remains visible for a moment.
deadline = time.monotonic() + 60
while set(gloos()) - before and time.monotonic() < deadline:
    time.sleep(0.05)
print("left:", sorted(set(gloos()) - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads have names on Linux")
def test_fsdp1_leaves_no_thread_of_its_process_group():
    # One that lets go of a Python object while the interpreter ends would end the process by an abort, as FSDP1's did.
    # FSDP2's mesh keeps its group, and with it the threads, until the end; no abort of it was ever seen.
    # In a process of its own: what other tests have made in this one may hold on to a group.
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "KINETO_LOG_LEVEL": "6"}
    command = [sys.executable, "-c", LEAVES_NO_THREAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "left: []"


def fake_batch(folder: Path, form: str, count: int) -> None:
    images = bytes((7 * i) % 256 for i in range(count * IMAGE_BYTES))
    labels = [i % 10 for i in range(count)]
    if form == "binary":
        place = folder / "cifar-10-batches-bin"
        place.mkdir()
        records = (bytes([n]) + images[i * IMAGE_BYTES : (i + 1) * IMAGE_BYTES] for i, n in enumerate(labels))
        (place / "data_batch_1.bin").write_bytes(b"".join(records))
        return
    np = pytest.importorskip("numpy")
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    data = np.frombuffer(images, dtype=np.uint8).reshape(count, IMAGE_BYTES).copy()
    (place / "data_batch_1").write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=2))


@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar10_from_a_local_folder(tmp_path, form):
    fake_batch(tmp_path, form, 12)
    data = Cifar10(tmp_path)
    image, label = data[11]
    assert (len(data), int(label), image.shape) == (12, 1, (3, 32, 32))
    # Byte k of the file is (7 k) mod 256; the first of image 11 is red, top left.
    red = (7 * 11 * IMAGE_BYTES) % 256 / 255
    assert float(image[0, 0, 0]) == pytest.approx((red - 0.4914) / 0.2470, abs=1e-5)
    assert Cifar10(tmp_path, size=48)[0][0].shape == (3, 48, 48)
    settings = Settings(steps=4, batch_size=4, device="cpu", profile=False)
    assert resnet18.train(settings, data="cifar10", data_dir=str(tmp_path), workers=0).steps == 4


@pytest.mark.slow
def test_cifar10_with_loader_workers(tmp_path):
    # In a process of its own: workers are forked, and this one has threads of earlier tests.
    fake_batch(tmp_path, "binary", 12)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "KINETO_LOG_LEVEL": "6"}
    schedule = ["--steps", "5", "--wait", "1", "--warmup", "1", "--active", "2"]
    options = ["--data", "cifar10", "--workers", "1", "--batch-size", "4", "--device", "cpu", *schedule]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rankscope.capture.workloads.resnet18",
            *options,
            "--data-dir",
            ".",
            "--save-dir",
            "run",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "resnet18: 5 steps on 1 rank (cpu)" in done.stdout
    assert [p.name for p in (tmp_path / "run").glob("*.trace*")] == ["rank0_iter2_3.trace.json.gz"]


class Evil:
    def __reduce__(self):
        return os.system, ("touch /nowhere/else",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": Evil(), b"labels": [1]}),
        pickle.dumps({b"data": codecs.lookup, b"labels": [1]}),
        pickle.dumps({b"data": b"x" * IMAGE_BYTES, b"labels": [1]}),
        pickle.dumps([1, 2]),
        b"",
        b"not a pickle",
    ],
)
def test_what_is_no_batch_is_refused(tmp_path, content, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("the pickle ran a command"))
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a CIFAR-10 batch"):
        read_batch(path)


def test_odd_folders_and_sizes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no CIFAR-10 here"):
        Cifar10(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(b"123")
    with pytest.raises(ConfigError, match="multiple"):
        Cifar10(tmp_path)


def test_devices():
    assert pick_device("cpu", 3).type == "cpu"
    with pytest.raises(ConfigError, match="not known"):
        pick_device("abacus", 0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no cuda device"):
            pick_device("cuda", 0)


def test_every_setting_is_explained():
    options = options_of(Settings)
    assert set(options) == set(Settings.__dataclass_fields__)
    assert all(option.help for option in options.values())


@pytest.mark.parametrize("module", [resnet18, transformer, fsdp])
def test_help(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", "--help"])
    with pytest.raises(SystemExit):
        module.main()
    printed = capsys.readouterr().out
    assert module.__doc__.splitlines()[0].split()[0] in printed
    for option in ("--steps", "--batch-size", "--dtype", "--compile", "--seed", "--device", "--no-profile", "--ranks"):
        assert option in printed
