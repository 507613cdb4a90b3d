"""Job scripts: their content, and that no user's value is ever obeyed by a shell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.jobs.job_scripts import HOSTILE, OURS, called, lines, needs_bash, script, stand_ins

from rankscope.errors import ConfigError
from rankscope.jobs.jobscript import JobRequest, Machine, find_machine, job_script
from rankscope.jobs.jobscript.machine import Setting
from rankscope.jobs.jobscript.request import seconds

if sys.version_info >= (3, 11):
    pass
else:
    pass

# --- its content ----------------------------------------------------------------------------------------


def test_slurm_with_a_process_a_rank():
    text = script(
        nodes=2, ranks_per_node=4, cpus_per_rank=7, account="nn1k", queue="accel", walltime="90m", device="cuda",
        command=("train.py", "--epochs", "3"), modules=("PyTorch/2.1",), venv="/home/me/env", directives=("--mem=0",),
    )  # fmt: skip
    assert lines(text, "#SBATCH") == [
        "--job-name=rankscope", "--account=nn1k", "--partition=accel", "--nodes=2", "--ntasks-per-node=4",
        "--cpus-per-task=7", "--time=01:30:00", "--output=%x-%j.out", "--gpus-per-node=4", "--mem=0",
    ]  # fmt: skip
    assert "module load PyTorch/2.1\n" in text
    assert "source /home/me/env/bin/activate\n" in text
    assert "EPOCHS=3\n" in text
    assert "export OMP_NUM_THREADS=7\n" in text
    assert 'srun --nodes="$NODES" --ntasks="$RANKS" --ntasks-per-node="$RANKS_PER_NODE" --cpus-per-task=7' in text
    assert "TRAIN=(python train.py --epochs 3)" in text


def test_slurm_with_torchrun_is_one_task_a_node():
    text = script(nodes=2, ranks_per_node=4, cpus_per_rank=7, launcher="torchrun")
    assert {"--ntasks-per-node=1", "--cpus-per-task=28"} <= set(lines(text, "#SBATCH"))
    assert 'srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --cpus-per-task=28' in text
    assert '--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$RUN_ID"' in text
    # torchrun gives its script to Python itself; anything else it is told to leave alone.
    assert text.count("--no-python") == 0
    assert '--no-python "${TRAIN[@]}"' in script(launcher="torchrun", command=("deepspeed", "x"))


def test_aurora_as_its_guide_has_it():
    text = job_script(
        JobRequest("pbs", ("train.py",), machine=find_machine("aurora"), nodes=2, account="proj", walltime="1h")
    )
    assert lines(text, "#PBS") == [
        "-N rankscope", "-A proj", "-q debug", "-l select=2", "-l walltime=01:00:00", "-l filesystems=home:flare",
        "-j oe", "-l place=scatter", "-k doe",
    ]  # fmt: skip
    assert "RANKS_PER_NODE=12\n" in text
    bind = "list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"
    assert f'mpiexec -n "$RANKS" -ppn "$RANKS_PER_NODE" --cpu-bind={bind} --pmi=pmix' in text
    assert 'MASTER_ADDR="${MASTER_ADDR%%.*}".hsn.cm.aurora.alcf.anl.gov' in text
    assert "export ZE_FLAT_DEVICE_HIERARCHY=FLAT\n" in text
    assert "export CCL_PROCESS_LAUNCHER=pmix\n" in text
    assert "export CCL_WORKER_AFFINITY=42,43,44,45,46,47,94,95,96,97,98,99\n" in text
    assert "export ZE_AFFINITY_MASK=0,1,2,3,4,5,6,7,8,9,10,11\n" in text
    two = job_script(JobRequest("pbs", ("t.py",), machine=find_machine("aurora"), ranks_per_node=2))
    assert "export CCL_WORKER_AFFINITY=42,43\n" in two
    assert "export ZE_AFFINITY_MASK=0,1\n" in two
    # Whoever binds otherwise may have these cores.
    own = job_script(
        JobRequest("pbs", ("t.py",), machine=find_machine("aurora"), ranks_per_node=2, cpu_bind="list:42:43")
    )
    assert "CCL_WORKER_AFFINITY" not in own
    # torchrun's processes are no ranks of MPI: what makes oneCCL ask MPI would hang there.
    by_torchrun = job_script(JobRequest("pbs", ("t.py",), machine=find_machine("aurora"), launcher="torchrun"))
    assert "CCL_KVS_MODE" not in by_torchrun
    assert "PET_LOCAL_ADDR" in by_torchrun


def test_pbs_asks_for_what_the_ranks_need():
    given = {"nodes": 2, "ranks_per_node": 4, "cpus_per_rank": 8, "device": "cuda"}
    text = script(scheduler="pbs", **given)
    assert {"-l select=2:ncpus=32:mpiprocs=4:ngpus=4", "-l place=scatter"} <= {*lines(text, "#PBS")}
    # Open MPI without PBS's interface knows neither the hosts nor, on them, where the programs are.
    (launched,) = lines(text, "mpiexec ")
    assert launched.startswith('--hostfile "$PBS_NODEFILE" -n "$RANKS"')
    assert " -x PATH -x MASTER_ADDR " in launched
    assert "-l select=1:ncpus=1:mpiprocs=1" in lines(script(scheduler="pbs"), "#PBS")
    # Who says it himself, is not contradicted.
    own = lines(script(scheduler="pbs", directives=("-l select=2:system=x", "-l place=pack"), **given), "#PBS")
    assert [line for line in own if "select=" in line or "place=" in line] == ["-l select=2:system=x", "-l place=pack"]


def test_a_machines_arguments_are_its_own_launchers():
    perlmutter, aurora = find_machine("perlmutter"), find_machine("aurora")
    for launcher in (None, "srun", "torchrun"):
        assert lines(script(machine=perlmutter, launcher=launcher), "srun ")[0].endswith("--gpu-bind=none \\")
    assert "--gpu-bind" not in lines(script(machine=perlmutter, launcher="mpiexec"), "mpiexec ")[0]
    pbs = {"scheduler": "pbs", "machine": aurora}
    assert lines(script(**pbs, launcher="torchrun"), "mpiexec ")[0].endswith("--pmi=pmix \\")
    assert "--pmi=pmix" not in lines(script(**pbs, mpi="openmpi"), "mpiexec ")[0]
    assert lines(script(**pbs, mpi="mpich", launcher_arguments=("--hosts=a",)), "mpiexec ")[0].endswith(
        '-ppn "$RANKS_PER_NODE" --hosts=a \\'
    )


def test_lumi_binds_as_its_guide_does():
    text = job_script(JobRequest("slurm", ("train.py",), machine=find_machine("lumi")))
    masks = "0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000"
    assert f"--cpu-bind=mask_cpu:{masks}" in text
    # Fewer ranks than devices: the first ones' cores. More, on the CPU: nobody knows.
    assert "mask_cpu:0xfe000000000000,0xfe00000000000000 " in script(machine=find_machine("lumi"), ranks_per_node=2)
    assert "mask_cpu" not in script(machine=find_machine("lumi"), ranks_per_node=9, device="cpu")
    assert "--cpu-bind=none" in script(machine=find_machine("lumi"), cpu_bind="none")


def test_polaris_binds_backwards():
    text = job_script(JobRequest("pbs", ("train.py",), machine=find_machine("polaris")))
    assert "--cpu-bind=list:24-31,56-63:16-23,48-55:8-15,40-47:0-7,32-39" in text
    assert "export NCCL_NET='AWS Libfabric'\n" in text


def test_where_the_launcher_cannot_bind_each_rank_does():
    machine = find_machine("lumi")
    text = script(machine=machine, launcher="torchrun")
    assert 'cores=("49-55" "57-63" "17-23" "25-31" "1-7" "9-15" "33-39" "41-47")' in text
    assert '--no-python "$RUN_DIR/rank.sh" "${TRAIN[@]}"' in text
    assert "taskset" not in script(machine=machine)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30", 1800),
        ("90m", 5400),
        ("2h", 7200),
        ("1d", 86_400),
        ("45s", 45),
        ("01:30:00", 5400),
        ("1-02:00:00", 93_600),
        # As sbatch(1) has them.
        ("30:15", 1815),
        ("90:00", 5400),
        ("1:2:3", 3723),
        ("1-2", 93_600),
        ("0-12", 43_200),
        ("1-00:00", 86_400),
        ("1-2:30", 95_400),
        ("1-0:0:1", 86_401),
    ],
)
def test_walltimes(text, found):
    assert seconds(text) == found


def test_walltimes_in_each_schedulers_way():
    assert "--time=1-02:00:00" in lines(script(walltime="26h"), "#SBATCH")
    assert "-l walltime=26:00:00" in lines(script(scheduler="pbs", walltime="26h"), "#PBS")
    assert "--time-limit=93600s" in lines(script(scheduler="flux", walltime="26h"), "#flux:")
    assert "--time=1-00:00:00" in lines(script(walltime="1-00:00"), "#SBATCH")
    assert "--time=00:30:15" in lines(script(walltime="30:15"), "#SBATCH")
    assert "-l walltime=36:00:00" in lines(script(scheduler="pbs", walltime="1-12"), "#PBS")
    assert "-l walltime=00:30:15" in lines(script(scheduler="pbs", walltime="30:15"), "#PBS")
    assert "--time-limit=90s" in lines(script(scheduler="flux", walltime="1:30"), "#flux:")
    assert "-l walltime=00:30:00" in lines(script(scheduler="pbs", walltime="30m"), "#PBS")
    with pytest.raises(ConfigError, match="seconds to PBS and minutes to others"):
        script(scheduler="pbs", walltime="30")
    for wrong in ("", "0", "1:", ":30", "1-", "1-2:3:4:5", "1:2:3:4", "UNLIMITED", "soon", "-5", "00:00:00", "٣"):
        with pytest.raises(ConfigError, match="is not a wall time"):
            seconds(wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"command": ()}, "no training script"),
        ({"scheduler": "sge"}, "not known"),
        ({"machine": find_machine("aurora")}, "uses pbs, not slurm"),
        ({"launcher": "flux"}, "does not start ranks under slurm"),
        ({"launcher": "horovodrun"}, "not known"),
        ({"traces": "elsewhere"}, "not known"),
        ({"nccl_debug": "LOUD"}, "not known"),
        ({"environment": ("FOO",)}, "sets nothing"),
        ({"environment": ("A B=1",)}, "name of a variable"),
        ({"environment": ("A$(x)=1",)}, "name of a variable"),
        ({"run_name": "../{time}"}, "cannot name a run"),
        ({"run_name": "{when}"}, "cannot name a run"),
        ({"run_name": ".."}, "cannot name a run"),
        ({"run_name": "$(x)"}, "cannot name a run"),
        ({"master_suffix": ".x; y"}, "cannot end a host's name"),
        ({"capture": ("--wait", "x")}, "must be a whole number, 0 or more"),
        ({"capture": ("--run-dir", "x")}, "sets the run's name"),
        ({"nodes": 0}, "out of range"),
        ({"nodes": 2, "ranks_per_node": 2, "capture": ("--ranks", "4")}, "names rank 4, and the job has 4: 0 to 3"),
        ({"nodes": 2, "ranks_per_node": 2, "capture": ("--ranks=0-7",)}, "--ranks 0-7 names rank 7"),
        ({"capture": ("--ranks", "1")}, "the job has only rank 0"),
        ({"capture": ("--ranks", "x")}, "is not understood"),
        ({"command": ("train.py", "a\0b")}, "NUL"),
        (
            {"scheduler": "pbs", "machine": find_machine("aurora"), "ranks_per_node": 13},
            "13 ranks per node, and a node of aurora has 12 devices",
        ),
        (
            {"machine": find_machine("saga"), "directives": ("--gpus-per-node=8",)},
            "8 ranks per node, and a node of saga",
        ),
        (
            {"scheduler": "pbs", "machine": find_machine("aurora"), "cpu_bind": "list:4-7:8-11:12-15"},
            "has cores for 3 ranks, and a node has 12",
        ),
        ({"cpu_bind": "verbose,list:4-7", "ranks_per_node": 2}, "has cores for 1 rank, and a node has 2"),
        ({"cpu_bind": "mask_cpu:0x3,0xc*2", "ranks_per_node": 4}, "has cores for 3 ranks"),
        ({"cpu_bind": "map_cpu:0,1", "ranks_per_node": 4}, "has cores for 2 ranks"),
        ({"cpu_bind": "list:4-x", "ranks_per_node": 1}, "not a list of CPUs"),
    ],
)
def test_what_is_not_valid(given, message):
    with pytest.raises(ConfigError, match=message):
        script(**given)


@pytest.mark.parametrize(
    "cpu_bind", ["list:0-3:4-7", "verbose,list:0:1:2", "mask_cpu:0x3*2", "map_cpu:0,1", "map_ldom:0", "depth", "none"]
)
def test_cores_that_suffice(cpu_bind):
    assert f"--cpu-bind={cpu_bind}" in script(ranks_per_node=2, cpu_bind=cpu_bind).replace("'", "")


def test_the_profiles_modules_can_be_left_out():
    for name in OURS:
        machine = find_machine(name)
        given = {"scheduler": machine.scheduler, "machine": machine, "source_files": ("env.sh",)}
        assert ("module load" in script(**given)) == bool(machine.software_modules)
        without = script(**given, profile_modules=False)
        assert not re.search(r"^module|conda activate", without, re.MULTILINE)
        assert "source ./env.sh" in without
        assert "module load mine\n" in script(**given, profile_modules=False, modules=("mine",))


# --- hostile values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [h for h in HOSTILE if h not in ("-n", "*", "{job}")])
@pytest.mark.parametrize("field", ["account", "queue", "job_name", "filesystems", "directives", "qos", "constraint"])
def test_the_schedulers_lines_take_no_odd_value(field, text):
    given = {field: (text,) if field == "directives" else text}
    if field in ("qos", "constraint"):
        given = {"machine": Machine(**{f"directives_{field}": text})}
    for scheduler in ("slurm", "pbs", "flux"):
        with pytest.raises(ConfigError, match="cannot be written in a scheduler's directive"):
            job_script(JobRequest(scheduler=scheduler, command=("t.py",), **given))


@needs_bash
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_arrive_as_they_are_and_nothing_obeys_them(tmp_path, text):
    path = text.replace("\0", "")
    job = JobRequest(
        scheduler="slurm",
        command=("train.py", text, f"--name={text}", "--epochs", "3"),
        machine=Machine(
            title=text,
            sources=(text,),
            environment=(Setting("FABRIC", text.replace("{job}", "j"), why=text),),
            container_binds=(text,),
            container_arguments=(text,),
            launch_arguments=(text,),
            launch_cpu_bind=text,
        ),
        nodes=2,
        ranks_per_node=4,
        modules=(text,),
        modules_use=(text,),
        environment=(f"MINE={text}",),
        container=text,
        container_command="apptainer",
        binds=(text,),
        rankscope_dir=text,
        launcher_arguments=(text,),
        runs_dir=f"runs {path}" if "/" not in path else "runs",
        traces="local",
        local_dir=f"/tmp/{text}",
        nccl_debug="INFO",
        capture=("--ranks", "0-3"),
        report=True,
    )
    bin_folder = stand_ins(tmp_path, ("srun", "apptainer", "rankscope", "python"))
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.sh").write_text(job_script(job))
    modules = tmp_path / "modules"
    environ = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[01-02]",
        "BASH_FUNC_module%%": f'() {{ printf "%s\\0" "$@" >>{modules}; }}',
    }
    done = subprocess.run(["bash", "job.sh"], cwd=work, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("/tmp/pwned").exists()
    assert modules.read_bytes().split(b"\0") == [s.encode() for s in ("use", text, "load", text)] + [b""]
    (train, environment), (gather, _) = called(tmp_path, "srun")
    (run_dir,) = (work / job.runs_dir).iterdir()
    assert re.fullmatch(r"E3_N2_R8_\d{8}-\d{6}", run_dir.name)
    # srun's own words, then what each rank runs.
    at = train.index(f"{run_dir}/rank.sh")
    assert train[:at] == [
        "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--export=ALL", f"--cpu-bind={text}", text, text,
    ]  # fmt: skip
    local = f"/tmp/{text}".rstrip("/") + f"/{run_dir.name}.77"
    assert train[at + 1 :] == [
        "apptainer", "exec", text, "--pwd", str(work), "--bind", str(work), "--bind", str(run_dir), "--bind", text,
        "--bind", text, "--bind", text, "--bind", local.rpartition("/")[0], text,
        "python", "-m", "rankscope.jobs.exec", "--run-dir", local, "--run-id", f"{run_dir.name}.77",
        "--ranks", "0-3", "python", "train.py", text, f"--name={text}", "--epochs", "3",
    ]  # fmt: skip
    assert environment["MINE"] == text
    assert environment["FABRIC"] == text.replace("{job}", "j")
    assert environment["PYTHONPATH"] == text
    assert environment["NCCL_DEBUG_FILE"] == f"{run_dir}/nccl/%h.%p.log"
    assert (environment["MASTER_ADDR"], environment["WORLD_SIZE"]) == ("node01", "8")
    assert 20000 <= int(environment["MASTER_PORT"]) < 32000
    assert gather[-6:] == ["python", "-m", "rankscope.jobs.gather", "--part", str(run_dir), local]
    assert (run_dir / "job.sh").read_text() == job_script(job)


@needs_bash
def test_placeholders_of_a_machines_settings(tmp_path):
    bin_folder = stand_ins(tmp_path, ("srun", "rankscope"))
    machine = Machine(environment=(Setting("CACHE", "/tmp/a b-{user}-{job}/$(x)"),))
    (tmp_path / "job.sh").write_text(script(machine=machine))
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n", "USER": "me"}
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, check=True, timeout=300, stdout=subprocess.DEVNULL)
    assert called(tmp_path, "srun")[0][1]["CACHE"] == "/tmp/a b-me-5/$(x)"


@needs_bash
def test_the_jobs_own_exit_code_is_the_scripts(tmp_path):
    bin_folder = stand_ins(tmp_path, ("rankscope",))
    (bin_folder / "srun").write_text("#!/bin/sh\nexit 3\n")
    (bin_folder / "srun").chmod(0o755)
    (tmp_path / "job.sh").write_text(script())
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n"}
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, timeout=300, stdout=subprocess.DEVNULL)
    assert done.returncode == 3
    # What there is is reported all the same.
    assert [arguments[0] for arguments, _ in called(tmp_path, "rankscope")] == ["gather", "summary", "report"]


# --- shellcheck -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here: apt-get install shellcheck")
@pytest.mark.parametrize("name", ["generic", *OURS])
def test_shellcheck_finds_nothing(tmp_path, name):
    machine = Machine() if name == "generic" else find_machine(name)
    schedulers = [machine.scheduler] if machine.scheduler else ["slurm", "pbs", "flux"]
    found = {
        job_script(
            JobRequest(
                scheduler,
                ("train.py",),
                machine=machine,
                launcher=launcher,
                traces=traces,
                container=it,
                analysis=analysis,
            )
        )
        for scheduler in schedulers
        for launcher in (None, "torchrun")
        for traces, it, analysis in (
            ("shared", None, "node"),
            ("local", "image.sif", "dask"),
            ("local", "i.sif", "mpi"),
        )
    }
    assert shellcheck(tmp_path, found) == ""


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here: apt-get install shellcheck")
def test_shellcheck_warns_of_nothing_with_hostile_values(tmp_path):
    hostile = HOSTILE[2]
    request = JobRequest(
        "slurm", ("train.py", *HOSTILE), nccl_debug="INFO", rankscope_dir=hostile, conda=hostile, venv=hostile,
        environment=(f"A={hostile}",), modules=(hostile,), report=False, traces="local", local_dir=hostile,
    )  # fmt: skip
    assert shellcheck(tmp_path, {job_script(request)}) == ""


def shellcheck(folder: Path, texts: set[str]) -> str:
    """What it says of some scripts, and of those that they write for ranks and nodes."""
    inner = {body + "\n" for text in texts for body in re.findall(r"<<'END'\n(?s:(.*?))\nEND\n", text)}
    assert inner
    for number, text in enumerate(sorted(texts | inner)):
        (folder / f"{number}.sh").write_text(text)
    line = ["shellcheck", *map(str, sorted(folder.glob("*.sh")))]
    return subprocess.run(line, capture_output=True, text=True, timeout=300).stdout
