"""Lines for the scheduler: what a user's line replaces, which numbers the script takes from it, and that a real sbatch
takes them all."""

from __future__ import annotations

import subprocess

import pytest
from tests.jobs.job_scripts import OURS, called, lines, needs_bash, script, stand_ins
from tests.jobs.launchers import said_by_sbatch

from rankscope.errors import ConfigError
from rankscope.jobs.jobscript import JobRequest, Machine, find_machine, job_script

MARKS = {"slurm": "#SBATCH", "pbs": "#PBS", "flux": "#flux:"}


def directives(scheduler="slurm", given=(), machine=None, **options) -> list[str]:
    machine = Machine() if machine is None else find_machine(machine)
    request = JobRequest(scheduler, ("train.py",), machine=machine, directives=given, **options)
    return lines(job_script(request), MARKS[scheduler])


SAGA = (
    "--job-name=rankscope", "--partition=accel", "--nodes=1", "--ntasks-per-node=4", "--cpus-per-task=6",
    "--time=00:30:00", "--output=%x-%j.out", "--gpus-per-node=4", "--mem-per-cpu=8G",
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ("--mem=4G", ["--mem-per-cpu=8G"]),
        ("--mem 4G", ["--mem-per-cpu=8G"]),
        ("--mem-per-gpu=4G", ["--mem-per-cpu=8G"]),
        ("--time=5", ["--time=00:30:00"]),
        ("-t 5", ["--time=00:30:00"]),
        ("-t5", ["--time=00:30:00"]),
        ("-N 2-4", ["--nodes=1"]),
        ("-J mine", ["--job-name=rankscope"]),
        ("-p normal", ["--partition=accel"]),
        ("-o out.txt", ["--output=%x-%j.out"]),
        ("--ntasks-per-gpu=1", ["--ntasks-per-node=4"]),
        ("--cpus-per-gpu=3", ["--cpus-per-task=6"]),
        ("--gres=gpu:p100:4,disk:20", ["--gpus-per-node=4"]),
        ("--gpus=4", ["--gpus-per-node=4"]),
        ("-G 4", ["--gpus-per-node=4"]),
        ("--gpus-per-node=p100:4", ["--gpus-per-node=4"]),
        ("--mem=4G -t 5 --hold", ["--mem-per-cpu=8G", "--time=00:30:00"]),
        # Of another meaning.
        ("--gres=localscratch:20G", []),
        ("--exclusive", []),
        ("--time-min=5", []),
    ],
)
def test_a_line_replaces_the_profiles_of_its_meaning(tmp_path, given, replaced):
    found = directives(given=(given,), machine="saga")
    assert found == [*(line for line in SAGA if line not in replaced), given]
    if "localscratch" not in given and "disk" not in given:  # known to no Slurm without a setting
        assert "Unable to contact slurm controller" in said_by_sbatch(
            tmp_path, script(machine=find_machine("saga"), directives=(given,))
        )


def test_sbatch_refuses_what_was_written_before(tmp_path):
    text = script(machine=find_machine("saga")).replace("#SBATCH --mem-per-cpu=8G", "#SBATCH --mem-per-cpu=8G --mem=4G")
    assert "mutually exclusive" in said_by_sbatch(tmp_path, text)


@pytest.mark.parametrize("name", [name for name in OURS if find_machine(name).scheduler == "slurm"])
@pytest.mark.parametrize("launcher", [None, "torchrun"])
def test_sbatch_takes_each_profiles_lines(tmp_path, name, launcher):
    machine = find_machine(name)
    for memory in (None, "4G"):
        text = script(machine=machine, launcher=launcher, nodes=2, account="nn1k", memory=memory)
        assert "Unable to contact slurm controller" in said_by_sbatch(tmp_path, text)


def test_other_schedulers_lines():
    pbs = {"scheduler": "pbs", "machine": "aurora", "account": "a"}
    whole = [
        "-N rankscope", "-A a", "-q debug", "-l select=1", "-l walltime=00:30:00", "-l filesystems=home:flare", "-j oe",
        "-l place=scatter", "-k doe",
    ]  # fmt: skip
    assert directives(**pbs) == whole
    for given, replaced in {
        "-l select=2:system=x": [3],
        "-l walltime=1:00:00": [4],
        "-l select=2,walltime=1:00:00": [3, 4],
        "-lplace=pack -A b": [7, 1],
        "-q prod": [2],
        "-k n": [8],
        "-l nodes=2:ppn=4": [3, 7],
        "-W depend=afterok:1": [],
    }.items():
        left = [line for index, line in enumerate(whole) if index not in replaced]
        assert directives(**pbs, given=(given,)) == [*left, given]
    flux = directives("flux", ("-N2", "-t 10m", "--queue=debug"), queue="batch")
    assert flux == [
        "--job-name=rankscope",
        "--nslots=1",
        "--output=rankscope-{{id}}.out",
        "-N2",
        "-t 10m",
        "--queue=debug",
    ]


def test_a_machines_lines_replace_the_usual_ones_and_not_the_users(tmp_path):
    (tmp_path / "ours.toml").write_text(
        'base = "lumi"\n[directives]\nlines = ["--account=site --exclusive", "--mem=480G", "--ntasks-per-node=1"]\n'
    )
    ours = str(tmp_path / "ours.toml")
    assert directives(machine=ours)[-4:] == [
        "--gpus-per-node=8", "--account=site --exclusive", "--mem=480G", "--ntasks-per-node=1",
    ]  # fmt: skip
    found = directives(machine=ours, account="mine", memory="64G")
    assert [line for line in found if "account" in line or "mem" in line] == ["--account=mine", "--mem=64G"]
    assert found[-2:] == ["--exclusive", "--ntasks-per-node=1"]
    # A line that is not there is not listed as not verified.
    assert "directives.lines --mem=480G" in script(machine=find_machine("lumi"))
    assert "--mem=480G" not in script(machine=find_machine("lumi"), memory="64G")


def test_memory():
    assert "--mem=64G" in directives(memory="64GiB")
    assert "--mem=0" in directives(memory="0")
    assert "--mem=800M" in directives(machine="saga", memory="800m")
    assert "--mem-per-cpu=8G" not in directives(machine="saga", memory="800M")
    assert "-l select=1:ncpus=1:mpiprocs=1:mem=64gb" in directives("pbs", memory="64G")
    assert "-l select=1:mem=64gb" in directives("pbs", machine="aurora", memory="64G")
    for scheduler, memory, given, message in (
        ("slurm", "64", (), "is not a size"),
        ("slurm", "lots", (), "is not a size"),
        ("pbs", "0", (), "is not a size"),
        ("flux", "64G", (), "flux has no option for memory"),
        ("pbs", "64G", ("-l select=2",), "a part of select"),
    ):
        with pytest.raises(ConfigError, match=message):
            directives(scheduler, given, memory=memory)


@pytest.mark.parametrize(
    ("given", "ranks", "cpus"),
    [
        ((), "${SLURM_GPUS_PER_NODE:-4}", 6),
        (("--ntasks-per-node=2",), "${SLURM_GPUS_PER_NODE:-2}", 6),
        (("-n 2",), "${SLURM_GPUS_PER_NODE:-2}", 6),
        (("-N 2", "-n 8", "-c 3"), "${SLURM_GPUS_PER_NODE:-4}", 3),
        (("--gpus-per-node=p100:2",), "${SLURM_GPUS_PER_NODE:-2}", 6),
        (("--gres=disk:20,gpu:p100:2",), "2", 6),
        (("--gres=gpu:2,disk:20",), "2", 6),
        (("--gpus=2",), "2", 6),
        (("--nodes=2", "-G p100:4"), "2", 6),
        (("--gpus=2", "--ntasks-per-node=1"), "1", 6),
        (("--cpus-per-gpu=2",), "${SLURM_GPUS_PER_NODE:-4}", 2),
    ],
)
def test_numbers_in_a_line_are_those_of_the_script(given, ranks, cpus):
    text = script(machine=find_machine("saga"), directives=given)
    assert f"RANKS_PER_NODE={ranks}\n" in text.replace('"', "")
    assert f"export OMP_NUM_THREADS={cpus}\n" in text
    assert f"--cpus-per-task={cpus} " in next(line for line in text.splitlines() if line.startswith("srun "))


def test_numbers_that_cannot_be_followed():
    with pytest.raises(ConfigError, match="7 tasks cannot be divided equally among 2 nodes"):
        script(directives=("--ntasks=7",), nodes=2)
    with pytest.raises(ConfigError, match="3 devices cannot be divided equally among 2 nodes"):
        script(directives=("--gpus=3",), nodes=2)
    saga = find_machine("saga")
    # A rank for all devices was meant.
    assert "RANKS_PER_NODE=1\n" in script(machine=saga, ranks_per_node=1, directives=("--gpus-per-node=4",))
    # torchrun is one task of a node, however many ranks it starts.
    assert ":-4}" in script(machine=saga, launcher="torchrun", directives=("--ntasks-per-node=1",))
    assert " --cpus-per-task=8 " in script(machine=saga, launcher="torchrun", directives=("--cpus-per-gpu=2",))
    assert "RANKS_PER_NODE=1\n" in script()


@needs_bash
@pytest.mark.parametrize(("gpus", "ranks"), [(None, "4"), ("2", "2"), ("p100:3", "3")])
def test_ranks_follow_the_devices_that_slurm_gave(tmp_path, gpus, ranks):
    bin_folder = stand_ins(tmp_path, ("srun", "rankscope"))
    (tmp_path / "job.sh").write_text(script(machine=Machine(node_device="cuda", node_ranks=4)))
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n"}
    environ |= {} if gpus is None else {"SLURM_GPUS_PER_NODE": gpus}
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, check=True, timeout=300, stdout=subprocess.DEVNULL)
    arguments, variables = called(tmp_path, "srun")[0]
    assert {f"--ntasks={ranks}", f"--ntasks-per-node={ranks}"} <= set(arguments)
    assert variables["WORLD_SIZE"] == ranks
    assert any(f"_R{ranks}_" in each for each in arguments)


# --- software without rankscope -------------------------------------------------------------------------------


@needs_bash
@pytest.mark.parametrize("launcher", [None, "torchrun"])
@pytest.mark.parametrize("software", ["container", "container and folder", "environment"])
@pytest.mark.parametrize("there", [True, False])
def test_a_job_whose_software_lacks_rankscope_trains(tmp_path, launcher, software, there):
    bin_folder = stand_ins(tmp_path, ("rankscope",))
    if not there:
        (bin_folder / "rankscope").unlink()
    # The job's programs: srun starts one process, the container's Python has torch, and rankscope or not.
    programs = {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; SLURM_PROCID=0 SLURM_LOCALID=0 exec "$@"',
        "apptainer": 'while [ "$1" != image.sif ]; do shift; done; shift; INSIDE=yes exec "$@"',
        "python": f"""
case "$*" in
*'import rankscope'*) {"exit 0" if there else 'echo Traceback >&2; echo "No module named rankscope" >&2; exit 1'} ;;
esac
echo "inside=${{INSIDE:-no}} python $*" >>{tmp_path}/python.txt""",
    }
    for name, body in programs.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    folder = {"rankscope_dir": "/somewhere"} if software == "container and folder" else {}
    inside = {"container": "image.sif", "container_command": "apptainer"} if software != "environment" else {}
    (tmp_path / "job.sh").write_text(script(launcher=launcher, nccl_debug="INFO", **inside, **folder))
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n"}
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ran = (tmp_path / "python.txt").read_text().splitlines() if (tmp_path / "python.txt").exists() else []
    if there:
        assert "warning" not in done.stderr
        assert (software == "environment") or "python -m rankscope.jobs.exec" in ran[0]
        return
    (warning,) = [line for line in done.stderr.splitlines() if line]
    lacks = "rankscope is not installed" if software == "environment" else "the image's Python lacks rankscope"
    assert warning.startswith(f"warning: {lacks}, so the job runs without it")
    assert software == "environment" or warning.endswith("No module named rankscope")
    (train,) = ran
    assert train.startswith(f"inside={'no' if software == 'environment' else 'yes'} python ")
    assert train.endswith("train.py")
    assert ("torch.distributed.run" in train) == (launcher == "torchrun")
