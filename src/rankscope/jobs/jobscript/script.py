"""The job script: its sections in the order in which a job runs them, each with a comment on its purpose.

In: a completed request. Out: the text of the script.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import islice

from rankscope.jobs.exec import take_options
from rankscope.jobs.jobscript.directives import directives, follows_devices
from rankscope.jobs.jobscript.quoting import comment, expanded, quoted, words
from rankscope.jobs.jobscript.ranks import binds_itself, launch_words, node_script, one_per_rank, rank_script
from rankscope.jobs.jobscript.request import RUN_NAME_VARIABLES, JobRequest
from rankscope.rundir.config import CaptureConfig
from rankscope.rundir.schedule import AUTO_START_STEP, windows

_DEVICE_OPTIONS = {"cuda": "--nv", "rocm": "--rocm"}
_SHOWN_WINDOWS = 3
_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "flux": "flux batch"}


def job_script(request: JobRequest) -> str:
    """A complete script for ``sbatch``, ``qsub`` or ``flux batch``.

    Args:
        request: the job.

    Raises:
        ConfigError: an invalid value in it.
    """
    job = request.resolved()
    exported: list[str] = []
    sections = [
        _head(job),
        _software(job),
        _names(job),
        _rendezvous(job, exported),
        _variables(job, exported),
        _container(job),
        _command(job),
        _start(job, exported),
        _afterwards(job, exported),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _head(job: JobRequest) -> list[str]:
    machine = job.machine
    lines = ["#!/bin/bash -l", *directives(job), "#"]
    lines += [
        f"# {_SUBMIT[job.scheduler]} this. Written by rankscope job {job.scheduler}, for {comment(machine.title)}."
    ]
    if machine.sources:
        lines += ["# The machine's settings are from these pages, and were not tried there:"]
        lines += [f"#   {comment(source)}" for source in machine.sources]
    written = [f"directives.lines {line.partition(' ')[2]}" for line in lines]
    lines_of = "directives.lines "  # a line that a directive replaces is not there
    unverified = [each for each in machine.unverified if not each.startswith(lines_of) or each in written]
    if unverified:
        values = ", ".join(comment(each) for each in machine.with_values(unverified))
        text = f"NOT VERIFIED, as on none of these pages; check before you rely on it: {values}."
        lines += [f"# {line}" for line in textwrap.wrap(text, 116, break_long_words=False, break_on_hyphens=False)]
    lines += ["", "set -euo pipefail"]
    if job.scheduler == "pbs":
        lines += ["# PBS starts jobs in the home directory.", 'cd "${PBS_O_WORKDIR:-$PWD}"']
    return lines


def _software(job: JobRequest) -> list[str]:
    machine = job.machine
    use, modules = list(job.modules_use), list(job.modules)
    if job.container and job.profile_modules:
        use += [path for path in machine.container_modules_use if path not in use]
        modules = [m for m in modules if m not in machine.software_modules] + list(machine.container_modules)
    lines = ["module --quiet purge"] if machine.software_purge and modules else []
    lines += [f"module use {quoted(path)}" for path in use] if modules else []
    lines += [f"module load {quoted(module)}" for module in modules]
    if job.conda:
        # `conda` is a function of the shell, which a batch shell may not have.
        lines += ['eval "$(conda shell.bash hook)"', f"conda activate {quoted(job.conda)}"]
    if job.venv:
        lines += ["# shellcheck source=/dev/null", f"source {quoted(job.venv.rstrip('/') + '/bin/activate')}"]
    for path in job.source_files:
        lines += ["# shellcheck source=/dev/null", f"source {quoted(_with_folder(path))}"]
    if not lines:
        return ["# Software: that of the submitting shell (--module, --conda, --venv, --source, --container)."]
    # These scripts read variables that may not be set.
    return ["# Software.", "set +u", *lines, "set -u"]


def _with_folder(path: str) -> str:
    """Without a folder, bash would look in PATH first."""
    return path if "/" in path else f"./{path}"


def _names(job: JobRequest) -> list[str]:
    each = job.ranks_per_node
    counted = {
        "slurm": ['JOB="$SLURM_JOB_ID"', f'NODES="${{SLURM_JOB_NUM_NODES:-{job.nodes}}}"'],
        "pbs": ['JOB="${PBS_JOBID%%.*}"', 'NODES="$(sort -u "$PBS_NODEFILE" | wc -l | tr -d " ")"'],
        "flux": ['JOB="$(flux getattr jobid 2>/dev/null || echo "$$")"', 'NODES="$(flux getattr size)"'],
    }[job.scheduler]
    name = expanded(job.run_name, RUN_NAME_VARIABLES)
    return [
        "# The run's name and directory. The number of nodes is that of the job, which may differ from the one above:",
        "# the same script serves every size of a scaling study.",
        *counted,
        *(
            [
                "# One for each device of a node, of which there may be other than the number above, too.",
                f'RANKS_PER_NODE="${{SLURM_GPUS_PER_NODE:-{each}}}"',
                'RANKS_PER_NODE="${RANKS_PER_NODE##*:}"  # with a type: p100:2',
            ]
            if follows_devices(job)
            else [f"RANKS_PER_NODE={each}"]
        ),
        "RANKS=$((NODES * RANKS_PER_NODE))",
        *([f"EPOCHS={job.epochs}"] if "{epochs}" in job.run_name else []),
        *(['TIME="$(date +%Y%m%d-%H%M%S)"'] if "{time}" in job.run_name else []),
        f"RUN_NAME={name}",
        f"RUNS_DIR={quoted(job.runs_dir)}",
        'case "$RUNS_DIR" in /*) ;; *) RUNS_DIR="$PWD/$RUNS_DIR" ;; esac',
        'mkdir -p "$RUNS_DIR"',
        'RUN_DIR="$RUNS_DIR/$RUN_NAME"',
        # Two jobs of one second, or a job that was requeued, must not share one.
        'if ! mkdir "$RUN_DIR" 2>/dev/null; then RUN_DIR="$RUN_DIR.$JOB"; mkdir -p "$RUN_DIR"; fi',
        'RUN_ID="$RUN_NAME.$JOB"',
        'cp "$0" "$RUN_DIR/job.sh" 2>/dev/null || true',
        'echo "run directory: $RUN_DIR"',
    ]


def _rendezvous(job: JobRequest, exported: list[str]) -> list[str]:
    first = {
        "slurm": 'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"',
        "pbs": 'MASTER_ADDR="$(sed -n 1p "$PBS_NODEFILE")"',
        "flux": 'MASTER_ADDR="$(flux hostlist --nth=0 instance)"',
    }[job.scheduler]
    lines = ["# Where the ranks meet: the first host.", first]
    if job.master_suffix:
        lines += [
            "# By its name on the fast network.",
            f'MASTER_ADDR="${{MASTER_ADDR%%.*}}"{quoted(job.master_suffix)}',
        ]
    exported += ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"]
    return [
        *lines,
        "# Below the ephemeral ports, and random, so that two jobs on one host rarely choose the same.",
        "MASTER_PORT=$((20000 + RANDOM % 12000))",
        'WORLD_SIZE="$RANKS"',
        "export MASTER_ADDR MASTER_PORT WORLD_SIZE",
    ]


def _variables(job: JobRequest, exported: list[str]) -> list[str]:
    lines = []
    settings = [s for s in job.machine.environment if job.launcher in s.launchers]
    if settings:
        lines += ["# Network and device settings of the machine."]
        job_of = {"user": "USER", "job": "JOB"}
        for setting in settings:
            lines += [f"# {setting.name}: {comment(setting.why)}."] if setting.why else []
            value = setting.value.replace("{local_ranks}", ",".join(map(str, range(job.ranks_per_node or 1))))
            lines += [f"export {setting.name}={expanded(value, job_of)}"]
        exported += [setting.name for setting in settings]
    if any("{user}" in setting.value for setting in settings):
        lines.insert(0, 'USER="${USER:-$(id -un)}"')
    workers = job.machine.worker_cores(job.ranks_per_node or 1)
    if workers and job.cpu_bind is None:
        lines += [
            "# oneCCL's workers, one of each rank, poll: on cores of their own, not on those of the ranks.",
            f"export CCL_WORKER_AFFINITY={','.join(workers)}",
        ]
        exported += ["CCL_WORKER_AFFINITY"]
    if job.cpus_per_rank and not any(s.partition("=")[0] == "OMP_NUM_THREADS" for s in job.environment):
        lines += ["# Threads per rank: no more than its cores.", f"export OMP_NUM_THREADS={job.cpus_per_rank}"]
        exported += ["OMP_NUM_THREADS"]
    if job.nccl_debug:
        lines += [
            "# NCCL's (RCCL's) log, one file per process; rankscope doctor reads them.",
            'mkdir -p "$RUN_DIR/nccl"',
            f'export NCCL_DEBUG={job.nccl_debug} NCCL_DEBUG_FILE="$RUN_DIR/nccl/%h.%p.log"',
        ]
        exported += ["NCCL_DEBUG", "NCCL_DEBUG_FILE"]
    for text in job.environment:
        name, _, value = text.partition("=")
        lines += [f"export {name}={quoted(value)}"]
        exported += [name]
    if job.rankscope_dir:
        lines += [
            "# rankscope itself: in the ranks it needs torch alone.",
            f"export PYTHONPATH={quoted(job.rankscope_dir)}" + '"${PYTHONPATH:+:$PYTHONPATH}"',
        ]
        exported += ["PYTHONPATH"]
    if job.traces == "local":
        lines += [
            "# Traces go to each host's local disk, and into the run directory after training.",
            f'export LOCAL_DIR={quoted(job.local_dir.rstrip("/") or "/")}"/$RUN_NAME.$JOB"',
        ]
        exported += ["LOCAL_DIR"]
    return lines


def _container(job: JobRequest) -> list[str]:
    if not job.container:
        return []
    machine = job.machine
    options = [*([_DEVICE_OPTIONS[job.device]] if job.device in _DEVICE_OPTIONS else []), *machine.container_arguments]
    binds = [*machine.container_binds, *job.binds, *([job.rankscope_dir] if job.rankscope_dir else [])]
    return [
        "# Everything below runs in this image.",
        "IN_CONTAINER=(",
        f"  {quoted(job.container_command or 'apptainer')} exec {words(options)}".rstrip(),
        '  --pwd "$PWD" --bind "$PWD" --bind "$RUN_DIR"',
        *(f"  --bind {quoted(bind)}" for bind in binds),
        *(['  --bind "${LOCAL_DIR%/*}"'] if job.traces == "local" else []),
        f"  {quoted(job.container)}",
        ")",
    ]


def _recorded(job: JobRequest) -> str:
    """Which steps the job records, as traces number them."""
    given = dict(text.split("=", 1) for text in job.environment)
    config = CaptureConfig.resolve({}, {**given, **take_options(job.capture)[0]})
    first = list(islice(windows(config, AUTO_START_STEP), _SHOWN_WINDOWS + 1))
    spans = ", ".join(f"{window.first} to {window.last}" for window in first[:_SHOWN_WINDOWS])
    steps = spans + (", …" if len(first) > _SHOWN_WINDOWS else "")
    ranks = "every rank" if config.ranks == "all" else f"ranks {comment(str(config.ranks))}"
    return f"Recorded on {ranks}: steps {steps} (a rankscope.Profiler in the script counts them itself)."


def _command(job: JobRequest) -> list[str]:
    where = "$LOCAL_DIR" if job.traces == "local" else "$RUN_DIR"
    by_python = bool(job.rankscope_dir or job.container)
    program = "python -m rankscope.jobs.exec" if by_python else "rankscope exec"
    inside = '"${IN_CONTAINER[@]}" ' if job.container else ""
    check = f"{inside}python -c 'import rankscope.jobs.exec'" if by_python else "command -v rankscope"
    lacks = "the image's Python lacks rankscope" if job.container else "rankscope is not installed"
    options = words(job.capture)
    python = ["python"] if job.command[0].endswith(".py") or job.command[0].startswith("-") else []
    return [
        "# Capture: the script needs no change; a step is a step of its optimizer. Options: rankscope exec --help.",
        f"# {_recorded(job)}",
        f'CAPTURE=({program} --run-dir "{where}" --run-id "$RUN_ID"{" " + options if options else ""})',
        f"TRAIN=({words((*python, *job.command))})",
        f'if ! REASON="$({check} 2>&1)"; then',
        '  REASON="$(tail -n 1 <<<"$REASON")"',
        f'  echo "warning: {lacks}, so the job runs without it; --rankscope-dir brings it. $REASON" >&2',
        "  CAPTURE=(env)  # the job as it is",
        "fi",
    ]


def _start(job: JobRequest, exported: list[str]) -> list[str]:
    inside = '"${IN_CONTAINER[@]}" ' if job.container else ""
    lines: list[str] = []
    if job.launcher == "torchrun":
        lines += _written("node.sh", node_script(job))
        rank = ""
        if binds_itself(job):
            lines += _written("rank.sh", rank_script(job))
            rank = '--no-python "$RUN_DIR/rank.sh" '
        lines += [
            "# One torchrun per node; they meet at the first host, and each starts its node's ranks.",
            "TORCHRUN=(",
            '  python -m torch.distributed.run --nnodes="$NODES" --nproc-per-node="$RANKS_PER_NODE"',
            '  --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$RUN_ID"',
            ")",
        ]
        # torchrun runs a script under Python by itself, unless an option changes that.
        train = '"${TRAIN[@]}"' if rank else _without_python(job)
        what = f'"$RUN_DIR/node.sh" {inside}"${{CAPTURE[@]}}" "${{TORCHRUN[@]}}" {rank}{train}'
    else:
        lines += _written("rank.sh", rank_script(job))
        lines += ["# One process per rank."]
        what = f'"$RUN_DIR/rank.sh" {inside}"${{CAPTURE[@]}}" "${{TRAIN[@]}}"'
    return [*lines, "STATUS=0", f"{launch_words(job, exported)} \\", f"  {what} || STATUS=$?"]


def _without_python(job: JobRequest) -> str:
    if job.command[0].endswith(".py") or job.command[0].startswith("-"):
        return '"${TRAIN[@]:1}"'
    return '--no-python "${TRAIN[@]}"'


def _written(name: str, lines: Sequence[str]) -> list[str]:
    return [f"cat >\"$RUN_DIR/{name}\" <<'END'", *lines, "END", f'chmod +x "$RUN_DIR/{name}"']


def _dask(job: JobRequest, exported: list[str], inside: str) -> list[str]:
    return [
        "# The nodes of the job read and analyze: a Dask scheduler here, and workers on each. They keep no results, so",
        "# Dask need not restart them for their memory; it may take a limit of the job's for theirs.",
        f'{inside}dask scheduler --host "$MASTER_ADDR" --port 0 --no-dashboard --scheduler-file '
        '"$RUN_DIR/dask.scheduler" >"$RUN_DIR/scheduler.log" 2>&1 &',
        "SCHEDULER=$!",
        'for _ in $(seq 60); do [ -s "$RUN_DIR/dask.scheduler" ] && break; sleep 1; done',
        f"{launch_words(job, exported, per_node=True)} \\",
        f'  {inside}dask worker --scheduler-file "$RUN_DIR/dask.scheduler" --nworkers "$RANKS_PER_NODE" --nthreads 1 '
        '--memory-limit 0 --no-dashboard >"$RUN_DIR/workers.log" 2>&1 &',
        "WORKERS=$!",
    ]


def _afterwards(job: JobRequest, exported: list[str]) -> list[str]:
    inside = '"${IN_CONTAINER[@]}" ' if job.container else ""
    by_python = job.rankscope_dir or job.container
    gather = f"{inside}python -m rankscope.jobs.gather" if by_python else f"{inside}rankscope gather"
    lines = [
        "# Without rankscope there is nothing else to do.",
        'if [ "${CAPTURE[0]}" = env ]; then exit "$STATUS"; fi',
    ]
    if job.traces == "local":
        lines += [
            "# Every node copies its traces.",
            f"{launch_words(job, exported, per_node=True)} \\",
            f'  {gather} --part "$RUN_DIR" "$LOCAL_DIR" || echo "some traces are still in $LOCAL_DIR on a host" >&2',
        ]
    lines += ["# Are all ranks there?", f'{gather} "$RUN_DIR" || true']
    if job.report and not job.rankscope_dir:
        before, where, after = inside, "", []
        if job.analysis == "dask":
            lines += _dask(job, exported, inside)
            where = ' --executor "dask:$RUN_DIR/dask.scheduler"'
            after = ['kill "$WORKERS" "$SCHEDULER" 2>/dev/null || true', "wait"]
        elif job.analysis == "mpi":
            lines += ["# One process per rank: the first runs the command, the others read and analyze."]
            before, where = f"{launch_words(one_per_rank(job), exported)} \\\n  {inside}", " --executor mpi"
        lines += [
            f'{before}rankscope summary "$RUN_DIR"{where} || true',
            f'{before}rankscope report "$RUN_DIR" -o "$RUN_DIR/report.html"{where} || true',
            *after,
        ]
    else:
        lines += ['echo "on a machine with rankscope: rankscope summary $RUN_DIR; rankscope serve $RUN_DIR"']
    return [*lines, 'exit "$STATUS"']
