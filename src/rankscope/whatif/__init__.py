"""What would a step take without this? One replay of a run's dependencies answers.

    moments ─▶ graph ─▶ replay ─▶ step_times (is the replay right?)
                          ▲           │
     options ─▶ scenarios ┘           ▼
                                    gains (alone, and one after another)

`moments` reads one rank's tables; `graph` joins the ranks by their collectives; `replay` computes when steps end from
what each segment costs; `step_times` compares with the recording; `scenarios` change costs; `gains` are differences of
replays. `plain_graphs` replays jobs that were published as graphs of operations, with known results.

In: the tables of all ranks, and scenarios. Out: the step time that each would give.
"""
