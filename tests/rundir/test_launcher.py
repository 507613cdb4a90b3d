"""Who launched this process: every launcher of the table, nested ones, and contradictions."""

from __future__ import annotations

import pytest

from rankscope.errors import LauncherError
from rankscope.rundir.launcher import identify

ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}


def torchrun(rank: int, size: int, local: int = 0) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local), **ELASTIC}


@pytest.mark.parametrize(
    ("environ", "launcher", "rank", "local_rank", "size"),
    [
        ({}, "none", None, None, None),
        ({**torchrun(8, 16, 0), "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, "torchrun", 8, 0, 16),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "env", 1, 1, 2),
        (
            {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9"},
            "slurm", 3, 1, 4,
        ),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, "slurm", 0, 0, 4),
        ({"PALS_RANKID": "13", "PALS_LOCAL_RANKID": "1", "PMI_RANK": "13", "PMI_SIZE": "24"}, "pals", 13, 1, 24),
        ({"PMI_RANK": "3", "PMI_LOCAL_RANK": "1", "PMI_SIZE": "4"}, "pmi", 3, 1, 4),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, "intelmpi", 3, 1, 4),
        # MPICH 4's Hydra sets Intel MPI's local ranks too; Intel MPI has variables of its own beside them.
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "HYDI_CONTROL_FD": "7"},
            "pmi", 3, 1, 4,
        ),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "HYDI_CONTROL_FD": "7", "I_MPI_ROOT": "/opt"},
            "intelmpi", 3, 1, 4,
        ),
        ({"PMIX_RANK": "5"}, "pmix", 5, None, None),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4",
             "PMIX_RANK": "2"},
            "openmpi", 2, 0, 4,
        ),
        (
            {"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_SIZE": "4"},
            "mvapich", 2, 0, 4,
        ),
        (
            {"MVP_COMM_WORLD_RANK": "2", "MVP_COMM_WORLD_LOCAL_RANK": "0", "MVP_COMM_WORLD_SIZE": "4"},
            "mvapich", 2, 0, 4,
        ),
        ({"FLUX_TASK_RANK": "6", "FLUX_TASK_LOCAL_ID": "2", "FLUX_JOB_SIZE": "8"}, "flux", 6, 2, 8),
        # Nested: srun starts one torchrun a node; the inner one counts.
        (
            {**torchrun(8, 16, 0), "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"},
            "torchrun", 8, 0, 16,
        ),
        # torchrun's rendezvous hands out ranks in any order, also where there is one a node.
        ({**torchrun(0, 2), "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "torchrun", 0, 0, 2),
        # A daemon of Open MPI was started by srun, whose PMI rank is the daemon's.
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2",
             "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            "openmpi", 5, 1, 8,
        ),
        # mpiexec in a batch script, which is task 0 of the allocation.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "PMI_RANK": "6", "PMI_SIZE": "8"}, "pmi", 6, None, 8),
        # deepspeed's launcher in each task of srun sets RANK without torchrun.
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "env", 5, None, 8),
        # A singleton beside a real launch.
        (
            {"PMI_RANK": "0", "PMI_SIZE": "1", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
            "openmpi", 3, None, 4,
        ),
    ],
)  # fmt: skip
def test_resolved(environ, launcher, rank, local_rank, size):
    who = identify(environ)
    assert (who.launcher, who.rank, who.local_rank, who.world_size) == (launcher, rank, local_rank, size)
    assert who.host


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, ["RANK=4", "WORLD_SIZE=4"]),
        ({"RANK": "x", "WORLD_SIZE": "4"}, ["RANK='x'"]),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, ["RANK='-1'"]),
        ({**torchrun(1, 4, 2), "LOCAL_WORLD_SIZE": "2"}, ["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"]),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "4"},
            ["OMPI_COMM_WORLD_RANK=3", "PMI_RANK=1"],
        ),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
            ["RANK=3", "OMPI_COMM_WORLD_RANK=1"],
        ),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, ["RANK=0", "SLURM_PROCID=1"]),
        ({"PALS_RANKID": "2", "PMIX_RANK": "1"}, ["PALS_RANKID=2", "PMIX_RANK=1"]),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "2"}, ["SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=2"]),
    ],
)
def test_contradictions_name_the_variables(environ, named):
    with pytest.raises(LauncherError) as error:
        identify(environ)
    for text in named:
        assert text in str(error.value)
    assert error.value.hint


def test_pals_without_pmi_counts_nodes(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    environ = {"PALS_RANKID": "3", "PALS_LOCAL_SIZE": "2", "PALS_NRANKS": "99", "PBS_NODEFILE": str(nodes)}
    assert identify(environ).world_size == 4
    assert identify({**environ, "PALS_RANKID": "7"}).world_size is None
    assert identify({**environ, "PBS_NODEFILE": str(tmp_path / "none")}).world_size is None


def test_run_ids():
    slurm = {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert identify({**slurm, "SLURM_STEP_ID": "3"}).known_run_id() == "slurm-12-3"
    assert identify(slurm).known_run_id() is None
    assert identify({**slurm, "TORCHELASTIC_RUN_ID": "abc"}).known_run_id() == "slurm-12-abc"
    assert identify({"TORCHELASTIC_RUN_ID": "abc"}).known_run_id() == "abc"
    assert identify(ELASTIC).known_run_id() is None
    assert identify({"FLUX_JOB_ID": "f1"}).known_run_id() == "flux-f1-0"
    assert identify({"PBS_JOBID": "9.srv", "PALS_APID": "7"}).known_run_id() == "pbs-9.srv-7"


def test_a_batch_script_is_no_task():
    batch = {"SLURM_JOB_ID": "12", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert not identify(batch).started_by_launcher
    assert identify({**batch, "SLURM_STEP_ID": "0"}).started_by_launcher
    assert not identify({**batch, "SLURM_STEP_ID": "4294967291"}).started_by_launcher
    assert identify({**torchrun(0, 2), "TORCHELASTIC_RESTART_COUNT": "2"}).restart_count == 2
