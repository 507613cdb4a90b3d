"""Machines' files: those that come with rankscope, a site's own, and invalid ones."""

from __future__ import annotations

import itertools
import sys

import pytest
from tests.jobs.job_scripts import OURS, script

from rankscope.errors import ConfigError
from rankscope.jobs.jobscript import JobRequest, find_machine, job_script, known_machines
from rankscope.rundir.cpus import parse_cpus

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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
        ("color = 1", "'color' is not a key"),
        ("[node]\ncolor = 1", "color is not known"),
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
