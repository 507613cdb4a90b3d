"""Jobs as newcomers write them, and what the summary of each must and must not say.

A job is one of the scripts in `templates` with lines of its own: a line that ends in `# PHASE` is where they go, in
place of what that line has. A summary is compared as text in which every run of white space is one blank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent, indent

TEMPLATES = Path(__file__).parent / "templates"
PHASES = ("imports", "group", "sizes", "model", "setup", "loading", "forward", "after step")
_PLACE = re.compile(rf"^( *)(.*?) *# ({'|'.join(PHASES)})$")

LINE = "<line>"
"""In an expectation: `job.py:` and the number of one of the lines that `PlainJob.at` matches."""

RANK_1 = r"(?<!the longest wait is for )\b[Rr]ank 1\b(?! \(worst)"
RANK_0 = RANK_1.replace("1", "0")
ANOTHER = r"[Rr]ank [^1] delays|stragglers rank [^1]:"
ANY_RANK = r"[Rr]ank \d delays|stragglers rank \d|wait is for rank \d"
SLEEPS = r"time\.sleep"
ASLEEP = (f"sleeps or is blocked at {LINE}",)
RUNS = (rf"runs tokenize \({LINE}\)",)
MORE_WORK = (r"more work|more data|a larger batch|longer sequence|more (rows|tokens)",)
DATA = (r"waits? for (its )?data|waiting for (its )?data(?! [\d<])|data loading|DataLoader",)
GC = (r"garbage collect",)
FALSE = (r"too few steps", r"its host is slow", r"NVLink|NCCL", r"CUDA|pin_memory")
"""What is false in the summary of each of these jobs, which run on the CPU."""
STEADY = ("asleep", "asleep-fsdp2", "loader-on-one-rank", "gc-collect", "alone", "alone-loader", "never-arrives")
"""Jobs whose summaries are the same on a busy machine."""
BUCKET = r"bucket"
"""False where a rank costs half of each step."""


@dataclass(frozen=True)
class PlainJob:
    """A job and what its summary is held against: all of `rank` and of `cause`, none of `never`.

    The first finding, or what is said about stragglers where there is no finding, is held against `rank` and `first`.
    """

    name: str
    template: str
    lines: dict[str, str] = field(default_factory=dict)
    ranks: int = 2
    options: tuple[str, ...] = ()
    rank: tuple[str, ...] = (RANK_1,)
    cause: tuple[str, ...] = ()
    first: tuple[str, ...] | None = None
    """By default, the first of `cause`."""
    never: tuple[str, ...] = (*FALSE, ANOTHER)
    at: str = ""
    hangs: bool = False
    """The job must fail by itself, and the last lines of `rankscope run` must say what the summary says."""
    times: int = 1
    classes: tuple[str, ...] = ("slow_host",)
    """Of causes (`class_of`): any of them is right for the rank that is to be named."""

    @property
    def timing(self) -> bool:
        """Whether it needs a machine that does nothing else: all but those whose rank costs most of a step."""
        return self.name not in STEADY

    @property
    def says(self) -> tuple[str, ...]:
        """All that must be said."""
        return (*self.rank, *self.cause)

    @property
    def late(self) -> int | None:
        """The rank to be named; None without one."""
        return {(): None, (RANK_0,): 0}.get(self.rank, 1)

    def without_cause(self) -> str:
        """The whole job with the late rank like the others."""
        return self.script().replace(f"rank == {self.late}", "rank == -1")

    def script(self) -> str:
        """The whole job."""
        left = dict(self.lines)
        made = []
        for line in (TEMPLATES / f"{self.template}.py").read_text(encoding="utf-8").splitlines():
            place = _PLACE.match(line)
            if place is None:
                made.append(line)
            elif place[3] in left:
                own = dedent(left.pop(place[3])).strip("\n")
                before = "\n\n" if own.startswith(("def ", "class ")) else ""
                after = "\n" if own.startswith("import ") else ""
                made.append(before + indent(own, place[1]) + after)
            elif place[2]:
                made.append(place[1] + place[2])
        if left:
            raise ValueError(f"{self.name}: {self.template}.py has no place for {', '.join(left)}")
        return "\n".join(made) + "\n"

    def pattern(self, expected: str) -> str:
        """An expectation with the numbers of this job's lines."""
        numbers = [
            str(n) for n, line in enumerate(self.script().splitlines(), 1) if self.at and re.search(self.at, line)
        ]
        return expected.replace(LINE, rf"\bjob\.py:(?:{'|'.join(numbers)})\b")


SLEEP = {"imports": "import time", "after step": "if rank == 1:\n    time.sleep(0.05)"}
SMALL = "rows, width = 384, 512"
TOKENIZE = {
    "imports": "import time",
    "setup": """
        def tokenize(text):
            until = time.perf_counter() + 0.03
            words = []
            while time.perf_counter() < until:
                words = [hash(word) % 1000 for word in text.split()]
            return words
    """,
    "loading": """
        if rank == 1:
            tokens = tokenize("the quick brown fox " * 20)
        batch = torch.randn(rows, width)
    """,
}
LOADER = """
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 60 * 8

        def __getitem__(self, index):
            %s
            return torch.randn(rows // 8, width)


    batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=8))
"""


def loaded(waits: str) -> dict[str, str]:
    """Batches from a loader that waits for each part of one."""
    return {
        "imports": "import time",
        "setup": LOADER % waits,
        "loading": "batch = next(batches).flatten(0, 1)",
    }


TRANSFORMER = {
    "sizes": "rows, width = 16, 256",
    "model": "network = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)",
    "loading": "batch = torch.randn(rows, 64, width)",
}
LONGER = TRANSFORMER | {"loading": "length = 128 if rank == 1 else 64\nbatch = torch.randn(rows, length, width)"}
TINY = {
    "forward": """
        scaled = batch[0, :8] + 0 * model(batch).sum()
        for _ in range(2400):
            scaled = scaled * 0.999 + 0.001
        loss = scaled.square().mean()
    """,
    "sizes": "rows, width = 16, 64",
}
NEIGHBOR = """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % 2]})
    if rank == 1:  # on the same core
        busy = "import time\\nuntil = time.time() + 60\\nwhile time.time() < until: pass"
        atexit.register(subprocess.Popen([sys.executable, "-c", busy]).kill)
"""
CACHE = """
    gc.set_threshold(10_000, 2, 2)
    cache = []
"""
EQUAL = (*FALSE, ANY_RANK)

JOBS = (
    PlainJob("asleep", "ddp", SLEEP, cause=ASLEEP, at=SLEEPS, never=(*FALSE, ANOTHER, BUCKET)),
    *(
        PlainJob(
            f"asleep-{ranks}-ranks",
            "ddp",
            SLEEP | {"sizes": SMALL},
            ranks=ranks,
            cause=ASLEEP,
            at=SLEEPS,
            never=(*FALSE, ANOTHER, BUCKET),
        )
        for ranks in (3, 4)
    ),
    PlainJob(
        "asleep-a-little",
        "ddp",
        SLEEP | {"after step": "if rank == 1:\n    time.sleep(0.008)"},
        cause=ASLEEP,
        at=SLEEPS,
    ),
    PlainJob(
        "four-times-the-batch",
        "ddp",
        {"sizes": "rows, width = 160 * (4 if rank == 1 else 1), 1024"},
        cause=MORE_WORK,
        never=(*FALSE, ANOTHER, BUCKET),
        classes=("more_work", "slow_host"),
    ),
    PlainJob("longer-sequences", "ddp", LONGER, cause=MORE_WORK, classes=("more_work", "slow_host")),
    PlainJob("tokenize", "ddp", TOKENIZE, cause=RUNS, at=r"tokenize|words|until"),
    PlainJob(
        "tokenize-with-stack",
        "ddp",
        TOKENIZE,
        options=("--with-stack",),
        cause=RUNS,
        at=r"tokenize|words|until",
    ),
    PlainJob(
        "loader-on-one-rank",
        "ddp",
        loaded("time.sleep(0.005 if rank == 1 else 0)"),
        cause=DATA,
        classes=("data_loading",),
    ),
    PlainJob(
        "loader-on-all-ranks",
        "ddp",
        loaded("time.sleep(0.005)"),
        rank=(),
        cause=DATA,
        never=EQUAL,
    ),
    PlainJob(
        "gc-collect",
        "ddp",
        {
            "imports": "import gc",
            "setup": "kept = [[number] for number in range(100_000)]",
            "after step": "if rank == 1:\n    gc.collect()",
        },
        cause=GC,
    ),
    PlainJob(
        "gc-by-threshold",
        "ddp",
        {
            "imports": "import gc",
            "setup": CACHE,
            "after step": "if rank == 1:\n    cache = (cache + [[number] for number in range(60_000)])[-300_000:]",
        },
        cause=GC,
    ),
    PlainJob(
        "neighbor-on-one-core",
        "ddp",
        {"imports": "import atexit\nimport os\nimport subprocess\nimport sys", "setup": NEIGHBOR},
        cause=(r"other programs run on its core",),
    ),
    PlainJob(
        "checkpoint",
        "ddp",
        {
            "setup": "state = [torch.randn(8_000_000) for _ in range(4)]",
            "after step": 'if rank == 0 and step % 5 == 0:\n    torch.save(state, "checkpoint.pt")',
        },
        rank=(RANK_0,),
        cause=(LINE,),
        at=r"torch\.save",
        never=(*FALSE, r"[Rr]ank 1 delays|stragglers rank 1:"),
    ),
    PlainJob(
        "evaluation",
        "ddp",
        {
            "after step": """
                if rank == 0 and step % 10 == 0:
                    with torch.no_grad():
                        for _ in range(20):
                            network(torch.randn(rows, width))
            """
        },
        rank=(RANK_0,),
        cause=(LINE,),
        at=r"network\(torch\.randn|range\(20\)",
        never=(*FALSE, r"[Rr]ank 1 delays|stragglers rank 1:"),
    ),
    PlainJob(
        "evaluation-with-barrier",
        "ddp",
        {
            "after step": """
                if step % 10 == 0:
                    if rank == 0:
                        with torch.no_grad():
                            for _ in range(20):
                                network(torch.randn(rows, width))
                    dist.barrier()
            """
        },
        rank=(RANK_0,),
        cause=(LINE,),
        at=r"network\(torch\.randn|range\(20\)",
        never=(*FALSE, r"[Rr]ank 1 delays|stragglers rank 1:"),
    ),
    PlainJob(
        "large-model-tiny-batches",
        "ddp",
        {"sizes": "rows, width = 2, 2048"},
        rank=(),
        cause=(r"communication",),
        never=EQUAL,
    ),
    PlainJob(
        "tiny-operators",
        "ddp",
        TINY,
        rank=(),
        cause=(r"(small|tiny|short|many) (operator|op|kernel|call)|operators are shorter|per operator",),
        never=EQUAL,
    ),
    PlainJob("equal", "ddp", rank=(), never=EQUAL, times=3),
    PlainJob("equal-transformer", "ddp", TRANSFORMER, rank=(), never=EQUAL),
    PlainJob("alone", "alone", ranks=1, rank=(), never=(*EQUAL, r"other ranks|DDP|all-reduce")),
    PlainJob(
        "alone-loader",
        "alone",
        loaded("time.sleep(0.005)"),
        ranks=1,
        rank=(),
        cause=DATA,
        never=(*EQUAL, r"other ranks|DDP|all-reduce"),
    ),
    PlainJob(
        "never-arrives",
        "ddp",
        {
            "imports": "import time\nfrom datetime import timedelta",
            "group": 'dist.init_process_group("gloo", timeout=timedelta(seconds=15))',
            "after step": "if rank == 1 and step == 30:\n    time.sleep(600)",
        },
        rank=(r"[Rr]ank 1\b(?! \((worst|local))",),
        cause=(r"all_?-?reduce", LINE),
        first=(r"all_?-?reduce|never arrive|did not arrive|hang|hung",),
        at=r"time\.sleep\(600\)|loss\.backward",
        # Of its thirty steps eight are recorded: that may be too few to compare ranks by.
        never=(*FALSE[1:], ANOTHER),
        hangs=True,
    ),
    PlainJob("asleep-fsdp2", "fsdp2", SLEEP, cause=ASLEEP, at=SLEEPS),
    PlainJob("equal-fsdp2", "fsdp2", rank=(), never=EQUAL),
    PlainJob(
        "tokenize-tensor-parallel",
        "tensor_parallel",
        TOKENIZE,
        cause=RUNS,
        at=r"tokenize|words|until",
    ),
    PlainJob(
        "tokenize-tensor-parallel-with-stack",
        "tensor_parallel",
        TOKENIZE,
        options=("--with-stack",),
        cause=RUNS,
        at=r"tokenize|words|until",
    ),
    PlainJob(
        "asleep-accumulating",
        "ddp",
        SLEEP
        | {
            "sizes": "rows, width = 192, 1024",
            "forward": """
                with model.no_sync():
                    model(batch).square().mean().backward()
                loss = model(batch).square().mean()
            """,
        },
        cause=ASLEEP,
        at=SLEEPS,
        never=(*FALSE, ANOTHER, BUCKET),
    ),
)
"""All of them."""
