"""Job scripts: what they say, that no user's value is ever obeyed by a shell, and what machines' files may hold."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import ConfigError
from rankscope.jobs.jobscript import JobRequest, Machine, find_machine, job_script, known_machines
from rankscope.jobs.jobscript.machine import Setting
from rankscope.jobs.jobscript.request import seconds
from rankscope.rundir.cpus import parse_cpus

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OURS = ("aurora", "lumi", "perlmutter", "polaris", "saga")
HOSTILE = (
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a\ntouch pwned\n",
    "END\ntouch pwned",
    "a b\tc",
    "${HOME}",
    "\\",
    "-n",
    "*",
    "ünï & <x> | y; z # q ! \x1b[31m",
    "{job}",
)


def script(**given) -> str:
    return job_script(JobRequest(**{"scheduler": "slurm", "command": ("train.py",), **given}))


def lines(text: str, mark: str) -> list[str]:
    return [line.removeprefix(mark).strip() for line in text.splitlines() if line.startswith(mark)]


# --- what stands in it ----------------------------------------------------------------------------------------


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
    own = job_script(JobRequest("pbs", ("t.py",), machine=find_machine("aurora"), cpu_bind="list:42:43"))
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
    # Fewer ranks than devices: the first ones' cores. More: nobody knows.
    assert "mask_cpu:0xfe000000000000,0xfe00000000000000 " in script(machine=find_machine("lumi"), ranks_per_node=2)
    assert "mask_cpu" not in script(machine=find_machine("lumi"), ranks_per_node=9)
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
        ({"capture": ("--wait", "x")}, "must be a whole number from 0"),
        ({"capture": ("--run-dir", "x")}, "sets the run's name"),
        ({"nodes": 0}, "out of range"),
        ({"nodes": 2, "ranks_per_node": 2, "capture": ("--ranks", "4")}, "names rank 4, and the job has 4: 0 to 3"),
        ({"nodes": 2, "ranks_per_node": 2, "capture": ("--ranks=0-7",)}, "--ranks 0-7 names rank 7"),
        ({"capture": ("--ranks", "1")}, "the job has only rank 0"),
        ({"capture": ("--ranks", "x")}, "is not understood"),
        ({"command": ("train.py", "a\0b")}, "NUL"),
    ],
)
def test_what_cannot_be_meant(given, message):
    with pytest.raises(ConfigError, match=message):
        script(**given)


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


SRUN = """#!{python}
import json, os, sys
with open({said!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
"""


def stand_ins(folder: Path, names: tuple[str, ...]) -> Path:
    """Programs that write down how they were called, and nothing else."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name in names:
        program = bin_folder / name
        program.write_text(SRUN.format(python=sys.executable, said=str(folder / f"{name}.jsonl")))
        program.chmod(0o755)
    (bin_folder / "scontrol").write_text("#!/bin/sh\nprintf 'node01\\nnode02\\n'\n")
    (bin_folder / "scontrol").chmod(0o755)
    return bin_folder


def called(folder: Path, name: str) -> list[tuple[list[str], dict[str, str]]]:
    return [tuple(json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


needs_bash = pytest.mark.skipif(shutil.which("bash") is None or os.name != "posix", reason="no bash here")


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
        for traces, it, analysis in (("shared", None, "node"), ("local", "image.sif", "dask"))
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


# --- machines -------------------------------------------------------------------------------------------------


def test_the_machines_that_come_along_are_whole():
    found = known_machines({})
    assert tuple(sorted(found)) == OURS
    for name in OURS:
        machine = find_machine(name, {})
        assert machine.title and machine.sources and machine.checked
        assert all(source.startswith("https://") for source in machine.sources)
        assert machine.node_ranks
        cores = [parse_cpus(each) for each in machine.node_cores]
        assert len(cores) in (0, machine.node_ranks)
        # No core belongs to two ranks.
        assert len(set(itertools.chain(*cores))) == sum(map(len, cores))
        job_script(JobRequest(machine.scheduler, ("t.py",), machine=machine))


@pytest.mark.parametrize("ranks", ["0-3", "3", "all", "every:8", "node", "none"])
def test_ranks_that_the_job_has(ranks):
    assert f"--ranks {ranks}" in script(nodes=2, ranks_per_node=2, capture=("--ranks", ranks))


@pytest.mark.parametrize("name", OURS)
def test_each_value_has_a_source_or_is_marked_and_the_script_says_which(name):
    path = known_machines({})[name]
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    machine = find_machine(name, {})
    pages = raw["source"]
    read = [value for page in pages for value in page["values"]]
    assert len(read) == len(set(read)), "read on two pages"
    assert not set(read) & set(machine.unverified)
    known = {*read, *machine.unverified}
    # Held against the file itself: every key of every table, each item of a list where not all were read together.
    values = {"scheduler": raw["scheduler"]}
    values |= {
        f"{table}.{key}": value for table, keys in raw.items() if isinstance(keys, dict) for key, value in keys.items()
    }
    values |= {f"environment.{each['name']}": each["value"] for each in raw.get("environment", ())}
    for key, value in values.items():
        if key not in known:
            assert isinstance(value, list) and value, f"{key} has no source and is not marked"
            assert {f"{key} {item}" for item in value} <= known, f"{key} has items without a source"
    assert {each.split(" ")[0] for each in known} <= set(values)
    text = job_script(JobRequest(machine.scheduler, ("t.py",), machine=machine))
    comments = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    assert "NOT VERIFIED" in comments
    assert all(value in comments for value in machine.unverified)
    assert all(page["url"] in comments for page in pages)
    if name == "perlmutter":
        # With its value, as it stands further down.
        assert "launch.arguments (--gpu-bind=none)" in comments
        assert "environment.FI_MR_CACHE_MONITOR (userfaultfd)" in comments


def test_a_site_that_looked_itself_says_so(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        'base = "perlmutter"\nunverified = ["directives.queue"]\n[launch]\ncpu_bind = "none"\n'
        '[directives]\nqueue = "gpu"\n[[source]]\nurl = "https://example.org"\nvalues = ["launch.cpu_bind"]\n'
    )
    ours, theirs = find_machine(str(path), {}), find_machine("perlmutter", {})
    assert set(ours.unverified) == {*theirs.unverified, "directives.queue"} - {"launch.cpu_bind"}
    assert ours.sources == (*theirs.sources, "https://example.org")
    # Without any word on it, nothing is claimed.
    path.write_text('title = "ours"\nscheduler = "slurm"\n')
    assert "VERIFIED" not in job_script(JobRequest("slurm", ("t.py",), machine=find_machine(str(path), {})))


def test_a_site_adds_machines(tmp_path):
    folder = tmp_path / "rankscope" / "machines"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(
        'base = "aurora"\ntitle = "ours"\n[launch]\nmaster_suffix = ".fast"\n'
        '[[environment]]\nname = "CCL_KVS_MODE"\nvalue = "pmi"\n[[environment]]\nname = "NEW"\nvalue = "1"\n'
    )
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert set(known_machines(environ)) == {*OURS, "mine"}
    machine = find_machine("mine", environ)
    assert (machine.name, machine.title, machine.launch_master_suffix) == ("mine", "ours", ".fast")
    assert machine.node_cores == find_machine("aurora", {}).node_cores
    settings = {setting.name: setting.value for setting in machine.environment}
    assert (settings["CCL_KVS_MODE"], settings["NEW"], settings["CCL_PROCESS_LAUNCHER"]) == ("pmi", "1", "pmix")
    # A site's own file of a name that we know is meant, and may start from ours; so may one that is named by its path.
    (folder / "lumi.toml").write_text('base = "lumi"\ntitle = "other"\n')
    assert find_machine("lumi", environ).title == "other"
    assert find_machine("lumi", environ).node_ranks == 8
    assert find_machine(str(folder / "mine.toml"), {}).title == "ours"
    # A folder that is named goes before.
    (tmp_path / "mine.toml").write_text('title = "first"\n')
    assert find_machine("mine", {**environ, "RANKSCOPE_MACHINES": str(tmp_path)}).title == "first"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "not valid TOML"),
        ("colour = 1", "'colour' is not a key"),
        ("[node]\ncolour = 1", "colour is not known"),
        ("[node]\nranks = '4'", "is not valid"),
        ("[node]\nranks = 0", "is not valid"),
        ("[node]\ncores = ['7-4']", "not a list of CPUs"),
        ("[node]\ndevice = 'tpu'", "not known"),
        ("scheduler = 'lsf'", "not known"),
        ("base = 'nowhere'", "not a known machine"),
        ("base = 3", "must be the name"),
        ("[[environment]]\nname = 'A B'\nvalue = ''", "name of a variable"),
        ("[[environment]]\nname = 'A'", "is not valid"),
        ("[[environment]]\nname = 'A'\nvalue = '{home}'", "only {user}, {job} and {local_ranks}"),
        ("environment = 3", "is not valid"),
        ("unverified = 'node.ranks'", "is not valid"),
        ("unverified = ['node.ranks']", "is not set in this file"),
        ("unverified = ['node.cores 9']\n[node]\ncores = ['0']", "is not set in this file"),
        ("source = 3", "is not valid"),
        ("[[source]]\nurl = 3", "is not valid"),
        ("[[source]]\nurl = 'x'\nvalues = ['node.ranks']", "is not set in this file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_named(tmp_path, text, message):
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        find_machine(str(path), {})
    assert str(path) in str(raised.value)


def test_machines_that_are_not_there():
    with pytest.raises(ConfigError, match="no machine is known as 'summit'") as raised:
        find_machine("summit", {})
    assert "aurora" in str(raised.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        find_machine("./nowhere.toml", {})


# --- the command ----------------------------------------------------------------------------------------------


@pytest.fixture
def rankscope(tmp_path, monkeypatch, capfd):
    """The command line in this process: its exit code, and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["rankscope", "job", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capfd.readouterr()

    return run


def test_the_command_writes_a_file_and_overwrites_none(tmp_path, rankscope):
    options = ["slurm", "--wait", "3", "--nodes", "2", "--record-shapes", "-A", "acc", "-o", "job.sh"]
    command = ["train.py", "--wait", "9", "--help"]
    code, out, err = rankscope(*options, *command)
    assert (code, out) == (0, "")
    assert "sbatch job.sh" in err
    text = (tmp_path / "job.sh").read_text()
    capture = ("--wait", "3", "--record-shapes")
    assert text == job_script(JobRequest("slurm", tuple(command), nodes=2, account="acc", capture=capture))
    assert os.name != "posix" or os.access(tmp_path / "job.sh", os.X_OK)
    code, _, err = rankscope(*options, *command)
    assert code == 2
    assert "job.sh: exists already" in err
    assert rankscope(*options, "--force", *command)[0] == 0
    # Without -o it goes on into a pipe.
    assert rankscope("slurm", "train.py")[1] == job_script(JobRequest("slurm", ("train.py",)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slurm"], "no training script"),
        (["slurm", "--colour", "red", "train.py"], "is not an option of rankscope job slurm"),
        (["pbs", "--profile", "lumi", "train.py"], "rankscope job slurm --profile lumi"),
        (["slurm", "--profile", "summit", "train.py"], "no machine is known"),
        (["slurm", "--wait", "x", "train.py"], "must be a whole number from 0"),
        (["slurm", "--activ", "2", "train.py"], "did you mean --active?"),
        (["slurm", "--acount=x", "train.py"], "did you mean --account?"),
        (["slurm", "--nodes", "2", "--ranks", "2", "train.py"], "names rank 2, and the job has 2: 0 to 1"),
    ],
)
def test_the_command_says_what_is_wrong(rankscope, arguments, message):
    code, out, err = rankscope(*arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_the_command_lists_machines(rankscope):
    code, out, _ = rankscope("machines")
    assert code == 0
    assert all(name in out for name in OURS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"filesystems": "home"}, "is not told which filesystems"),
        ({"directives": ("exclusive",)}, "is not an option of slurm"),
        ({"container": "image.sif", "container_command": "docker"}, "container command 'docker' is not known"),
    ],
)
def test_what_the_script_could_not_do_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        JobRequest("slurm", ("train.py",), **given).resolved()


@pytest.mark.parametrize(
    ("capture", "environment", "recorded"),
    [
        ((), (), "every rank: steps 16 to 18"),
        (("--wait", "1", "--warmup=1", "--active", "2"), (), "every rank: steps 3 to 4"),
        (("--repeat=2", "--ranks", "0-3"), (), "ranks 0-3: steps 16 to 18, 34 to 36"),
        (("--repeat", "0"), (), "every rank: steps 16 to 18, 34 to 36, 52 to 54, …"),
        (("--period-steps=100",), (), "every rank: steps 97 to 99, 197 to 199, 297 to 299, …"),
        (("--preset", "minimal"), ("RANKSCOPE_WAIT=4",), "every rank: steps 6 to 6"),
    ],
)
def test_a_script_names_the_steps_that_it_records(capture, environment, recorded):
    text = script(ranks_per_node=4, capture=capture, environment=environment)
    assert f"# Recorded on {recorded} (a rankscope.Profiler in the script counts them itself).\n" in text


def test_oneccls_workers_and_ranks_on_one_core_are_refused(tmp_path):
    (tmp_path / "ours.toml").write_text('[node]\ncores = ["0-3", "4-7"]\nccl_cores = ["8", "7"]\n')
    with pytest.raises(ConfigError, match="share 7"):
        find_machine(str(tmp_path / "ours.toml"))


@needs_bash
def test_a_sourced_script_reaches_the_ranks_and_the_name_knows_the_nodes(tmp_path):
    bin_folder = stand_ins(tmp_path, ("srun", "rankscope", "python"))
    (tmp_path / "my env.sh").write_text('export MINE="$UNSET"yes\n')
    job = JobRequest(
        "slurm", ("train.py",), nodes=2, ranks_per_node=2, source_files=("my env.sh",),
        run_name="n{nodes}x{ranks_per_node}",
    )  # fmt: skip
    (tmp_path / "job.sh").write_text(job_script(job))
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "7"}
    environ |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[01-02]"}
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ((_, ranks),) = called(tmp_path, "srun")
    assert ranks["MINE"] == "yes"
    assert (tmp_path / "runs" / "n2x2").is_dir()
    (tmp_path / "my env.sh").unlink()
    again = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert again.returncode != 0
    assert "my env.sh" in again.stderr
