"""Queries to start from.

In: nothing. Out: names, what each query answers, and SQL.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A query to start from.

    Attributes:
        title: what it answers.
        sql: the query.
    """

    title: str
    sql: str


EXAMPLES: dict[str, Example] = {
    "longest_kernels": Example(
        "The longest kernels of all ranks: each row opens on the timeline.",
        """\
SELECT rank, name, start_ns, end_ns, end_ns - start_ns AS duration_ns
FROM device_events
WHERE kind = 'kernel'
ORDER BY duration_ns DESC, rank, start_ns
LIMIT 20""",
    ),
    "kernels_by_name": Example(
        "Kernels by total time, over all ranks.",
        """\
SELECT name, count(*) AS calls, sum(end_ns - start_ns) AS total_ns, max(end_ns - start_ns) AS max_ns
FROM device_events
WHERE kind = 'kernel'
GROUP BY name
ORDER BY total_ns DESC, name""",
    ),
    "events_by_rank": Example(
        "Device events of each rank by kind: a rank with other work than the rest stands out.",
        """\
SELECT rank, kind, count(*) AS events, sum(end_ns - start_ns) AS total_ns
FROM device_events
GROUP BY rank, kind
ORDER BY rank, kind""",
    ),
    "streams": Example(
        "Streams of each device: what runs on them, and from when to when.",
        """\
SELECT rank, device, stream, count(*) AS events, min(start_ns) AS start_ns, max(end_ns) AS end_ns
FROM device_events
GROUP BY rank, device, stream
ORDER BY rank, device, stream""",
    ),
    "slow_on_one_rank": Example(
        "Kernels that take longer on one rank than on average: the same work on a slower device.",
        """\
WITH of_rank AS (
  SELECT rank, name, avg(end_ns - start_ns) AS mean_ns
  FROM device_events WHERE kind = 'kernel' GROUP BY rank, name
), of_all AS (
  SELECT name AS kernel, avg(end_ns - start_ns) AS all_ns
  FROM device_events WHERE kind = 'kernel' GROUP BY name
)
SELECT of_rank.rank, of_rank.name, of_rank.mean_ns, of_all.all_ns, of_rank.mean_ns / of_all.all_ns AS ratio
FROM of_rank JOIN of_all ON of_rank.name = of_all.kernel
ORDER BY ratio DESC, rank, name""",
    ),
    "launch_latency": Example(
        "Time from the launch of a kernel to its start, by rank.",
        """\
SELECT rank, count(*) AS kernels, avg(start_ns - launch_ns) AS mean_ns, max(start_ns - launch_ns) AS max_ns
FROM device_events
WHERE launch_ns IS NOT NULL
GROUP BY rank
ORDER BY rank""",
    ),
    "launch_calls": Example(
        "Device events with the runtime call that launched them: `launch_row` refers to `row_index`.",
        """\
SELECT k.rank, k.name, r.name AS call, k.start_ns, k.end_ns, k.start_ns - r.end_ns AS delay_ns
FROM device_events AS k
JOIN runtime_calls AS r ON k.rank = r.rank AND k.file = r.file AND k.launch_row = r.row_index
ORDER BY delay_ns DESC, k.rank, k.start_ns
LIMIT 20""",
    ),
    "operators_by_device_time": Example(
        "Operators by the device time of what they launched themselves.",
        """\
SELECT o.name, count(*) AS events, sum(k.end_ns - k.start_ns) AS device_ns
FROM device_events AS k
JOIN host_ops AS o ON k.rank = o.rank AND k.file = o.file AND k.op_row = o.row_index
GROUP BY o.name
ORDER BY device_ns DESC, o.name""",
    ),
    "shapes_of_matrix_products": Example(
        "Shapes of matrix products, the most frequent first.",
        """\
SELECT name, input_dims, count(*) AS calls, sum(end_ns - start_ns) AS host_ns
FROM host_ops
WHERE name IN ('aten::mm', 'aten::addmm', 'aten::bmm')
GROUP BY name, input_dims
ORDER BY calls DESC, name, input_dims""",
    ),
    "host_threads": Example(
        "Time in operators by host thread: the main thread, autograd's, the loader's.",
        """\
SELECT rank, tid, count(*) AS operators, sum(end_ns - start_ns) AS total_ns
FROM host_ops
WHERE depth = 0
GROUP BY rank, tid
ORDER BY rank, total_ns DESC, tid""",
    ),
    "python_self_time": Example(
        "Python functions by their own time (recorded with `with_stack`).",
        """\
SELECT name, count(*) AS calls, sum(self_ns) AS total_self_ns
FROM python_frames
GROUP BY name
ORDER BY total_self_ns DESC, name
LIMIT 50""",
    ),
    "synchronizations": Example(
        "Calls in which the host waits for the device, by rank.",
        """\
SELECT rank, name, count(*) AS calls, sum(end_ns - start_ns) AS total_ns
FROM runtime_calls
WHERE name LIKE '%Synchronize%'
GROUP BY rank, name
ORDER BY total_ns DESC, rank, name""",
    ),
    "copies": Example(
        "Copies by kind: size, time and bandwidth.",
        """\
SELECT rank, name, count(*) AS copies, sum(bytes) AS total_bytes, sum(end_ns - start_ns) AS total_ns,
  CAST(sum(bytes) AS DOUBLE) / sum(end_ns - start_ns) AS gb_per_s
FROM device_events
WHERE kind = 'memcpy'
GROUP BY rank, name
ORDER BY total_bytes DESC, rank, name""",
    ),
    "steps": Example(
        "The steps of each rank on the host, as the job marked them.",
        """\
SELECT rank, step, start_ns, end_ns, end_ns - start_ns AS duration_ns
FROM annotations
WHERE step IS NOT NULL AND NOT on_device
ORDER BY step, rank""",
    ),
    "step_starts": Example(
        "When each rank starts each step, on the run's clock, which compares ranks.",
        """\
SELECT step, rank, start_ns, end_ns - start_ns AS duration_ns
FROM annotations
WHERE step IS NOT NULL AND NOT on_device
ORDER BY step, start_ns, rank""",
    ),
    "largest_allocations": Example(
        "The largest allocations (recorded with `profile_memory`).",
        """\
SELECT rank, time_ns, device, bytes, total_allocated
FROM memory_events
WHERE bytes > 0
ORDER BY bytes DESC, rank, time_ns
LIMIT 20""",
    ),
    "memory_peaks": Example(
        "The highest allocated and reserved memory of each device.",
        """\
SELECT rank, device_type, device, max(total_allocated) AS peak_allocated, max(total_reserved) AS peak_reserved
FROM memory_events
GROUP BY rank, device_type, device
ORDER BY peak_allocated DESC, rank, device""",
    ),
    "messages": Example(
        "Collectives on the device by kind, type and group: how many, how large.",
        """\
SELECT collective, dtype, group_name, count(*) AS calls, sum(in_elements) AS in_elements
FROM collectives
WHERE source = 'device_events'
GROUP BY collective, dtype, group_name
ORDER BY in_elements DESC, collective""",
    ),
    "longest_waits": Example(
        "The collectives in which a rank waited longest for the others, from the analysis `collectives`.",
        """\
SELECT rank, step, collective, start_ns, end_ns, duration_ns, wait_ns
FROM result_collectives
WHERE wait_ns IS NOT NULL
ORDER BY wait_ns DESC, rank, start_ns
LIMIT 20""",
    ),
    "step_spread": Example(
        "The fastest and the slowest rank in each step, from the analysis `step_time`.",
        """\
SELECT step, min(window_ns) AS fastest_ns, max(window_ns) AS slowest_ns, max(window_ns) - min(window_ns) AS spread_ns
FROM result_step_time
WHERE step IS NOT NULL
GROUP BY step
ORDER BY step""",
    ),
    "exposed_share": Example(
        "The share of each rank's time in which communication is exposed, from the analysis `device_time`.",
        """\
SELECT rank, exposed_communication_ns, span_ns,
  CAST(exposed_communication_ns AS DOUBLE) / span_ns AS exposed_share
FROM result_device_time
ORDER BY exposed_share DESC, rank""",
    ),
}
