"""The callbacks of Hugging Face's and Lightning's trainers, and the same trainers under the hook: against the real
libraries, each in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from rankscope.jobs.exec import profiled_environment
from rankscope.rundir.manifest import read_rank_manifest

from .conftest import clean_environ, read_trace, steps_in, traces

pytestmark = pytest.mark.slow
# With accumulated gradients a trainer does all that it does without, and steps less often than it computes.
soak = pytest.mark.soak
HOW = "not installed: .venv/bin/python -m pip install -c constraints.txt --group integrations"


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} {HOW}")


huggingface = needs("transformers", "accelerate")
lightning = needs("lightning")

HF = """
import sys, torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x=None, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}
class Data(torch.utils.data.Dataset):
    def __len__(self): return 24 * 4
    def __getitem__(self, i): return {"x": torch.ones(8) * i, "labels": torch.ones(8)}
arguments = dict(output_dir="out", max_steps=8, per_device_train_batch_size=2, report_to=[], use_cpu=True,
                 save_strategy="no", disable_tqdm=True, logging_strategy="no")
def trainer(callbacks=(), **options):
    return Trainer(Model(), TrainingArguments(**{**arguments, **options}), train_dataset=Data(), callbacks=[*callbacks])
"""

PL = """
import sys, torch, warnings, logging
warnings.simplefilter("ignore"); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning.pytorch as pl
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
class Two(Model):
    automatic_optimization = False
    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.zero_grad(); self.manual_backward(self.layer(batch).square().mean()); optimizer.step()
    def configure_optimizers(self):
        return [torch.optim.Adam(self.parameters()), torch.optim.SGD(self.parameters(), 0.1)]
loader = torch.utils.data.DataLoader(torch.ones(64, 8), batch_size=2)
def trainer(callbacks=(), **options):
    return pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[*callbacks], **{"max_steps": 8, **options})
"""
SHORT = "wait=1, warmup=1, active=2"


def run(code, cwd, environ=None, launcher=()):
    (cwd / "train.py").write_text(code)
    environ = {**clean_environ(), "HF_HUB_OFFLINE": "1", **(environ or {})}
    done = subprocess.run(
        [sys.executable, *launcher, "train.py"], cwd=cwd, env=environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def check(folder, names):
    assert traces(folder / "run") == names
    for name in names:
        first, last = (int(n) for n in name.split("iter")[1].split(".")[0].split("_"))
        assert steps_in(read_trace(folder / "run" / name)) == list(range(first, last + 1))


def steps_made(folder):
    return read_rank_manifest(folder / "run" / "ranks" / "rank0.json").steps


@huggingface
@pytest.mark.parametrize(
    ("options", "steps"), [pytest.param("", 8, marks=soak), ("gradient_accumulation_steps=2, max_steps=6", 6)]
)
def test_a_hugging_face_trainer(tmp_path, options, steps):
    code = HF + (
        "from rankscope.capture.integrations.huggingface import RankscopeCallback\n"
        f"trainer([RankscopeCallback('run', {SHORT})], {options}).train()\n"
    )
    run(code, tmp_path)
    check(tmp_path, ["rank0_iter2_3.trace.json.gz"])
    assert steps_made(tmp_path) == steps
    trace = read_trace(tmp_path / "run" / "rank0_iter2_3.trace.json.gz")
    # One step of the optimizer in each of ours.
    assert sum(e["name"].startswith("Optimizer.step#") for e in trace["traceEvents"]) == 2


@huggingface
def test_a_resumed_hugging_face_training_continues_counting(tmp_path):
    code = HF + (
        "from rankscope.capture.integrations.huggingface import RankscopeCallback\n"
        "trainer(max_steps=5, save_strategy='steps', save_steps=5).train()\n"
        f"trainer([RankscopeCallback('run', {SHORT})], max_steps=12).train(resume_from_checkpoint='out/checkpoint-5')\n"
    )
    run(code, tmp_path)
    check(tmp_path, ["rank0_iter7_8.trace.json.gz"])


@lightning
@pytest.mark.parametrize(
    ("options", "model", "steps"),
    [pytest.param("", "Model", 8, marks=soak), ("accumulate_grad_batches=2", "Model", 8), ("max_steps=20", "Two", 10)],
)
def test_a_lightning_trainer(tmp_path, options, model, steps):
    code = PL + (
        "from rankscope.capture.integrations.lightning import RankscopeCallback\n"
        f"trainer([RankscopeCallback('run', {SHORT})], {options}).fit({model}(), loader)\n"
    )
    run(code, tmp_path)
    check(tmp_path, ["rank0_iter2_3.trace.json.gz"])
    assert steps_made(tmp_path) == steps


@lightning
def test_an_exception_in_lightning_saves_what_was_recorded(tmp_path):
    code = PL + (
        "from rankscope.capture.integrations.lightning import RankscopeCallback\n"
        "class Fails(Model):\n    def training_step(self, batch, index):\n"
        "        if index == 3: raise ValueError('x')\n"
        "        return super().training_step(batch, index)\n"
        "try:\n"
        f"    trainer([RankscopeCallback('run', {SHORT})]).fit(Fails(), loader)\n"
        "except ValueError: pass\nelse: raise SystemExit(5)\n"
    )
    run(code, tmp_path)
    check(tmp_path, ["rank0_iter2_2.trace.json.gz"])


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        pytest.param(HF + "trainer().train()\n", 8, marks=[huggingface, soak], id="hugging face"),
        pytest.param(
            HF + "trainer(gradient_accumulation_steps=2).train()\n", 8, marks=huggingface, id="hugging face accumulates"
        ),
        pytest.param(PL + "trainer().fit(Model(), loader)\n", 8, marks=[lightning, soak], id="lightning"),
        pytest.param(
            PL + "trainer(accumulate_grad_batches=2).fit(Model(), loader)\n",
            8,
            marks=lightning,
            id="lightning accumulates",
        ),
    ],
)
def test_the_hook_under_their_trainers(tmp_path, code, steps):
    settings = {"WAIT": "1", "WARMUP": "1", "ACTIVE": "2", "RUN_DIR": "run"}
    run(code, tmp_path, profiled_environment({**clean_environ(), **{f"RANKSCOPE_{k}": v for k, v in settings.items()}}))
    check(tmp_path, ["rank0_iter3_4.trace.json.gz"])
    assert steps_made(tmp_path) == steps


@huggingface
def test_a_callback_under_the_hook_is_used_instead(tmp_path):
    code = HF + (
        "from rankscope.capture.integrations.huggingface import RankscopeCallback\n"
        f"trainer([RankscopeCallback('run', {SHORT})]).train()\n"
    )
    run(code, tmp_path, profiled_environment({**clean_environ(), "RANKSCOPE_RUN_DIR": "elsewhere"}))
    check(tmp_path, ["rank0_iter2_3.trace.json.gz"])
    assert not (tmp_path / "elsewhere").exists()


@huggingface
def test_two_ranks_of_a_hugging_face_trainer(tmp_path):
    code = HF + (
        "from rankscope.capture.integrations.huggingface import RankscopeCallback\n"
        f"trainer([RankscopeCallback('run', {SHORT}, ranks='1')]).train()\n"
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run(code, tmp_path, {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}, launcher)
    check(tmp_path, ["rank1_iter2_3.trace.json.gz"])
    assert [path.name for path in (tmp_path / "run" / "ranks").iterdir()] == ["rank1.json"]
