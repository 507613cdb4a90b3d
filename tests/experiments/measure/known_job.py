"""A job whose cost is known: compute that is a sleep, and a gradient hook that sleeps.

    known_job.py FORWARD BACKWARD HOOK [LATE [DATA]]

Seconds of the forward, of what the backward does once the gradients are there, of the hook in place of the all-reduce,
of what rank 1 waits before it begins a real all-reduce (the hook is left out then; `-` for none), and of what loading
the data takes. It knows nothing of rankscope.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

FORWARD, BACKWARD, HOOK = (float(word) for word in sys.argv[1:4])
LATE = float(sys.argv[4]) if len(sys.argv) > 4 and sys.argv[4] != "-" else None
DATA = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
torch.set_num_threads(1)


@torch.library.custom_op("known::sleep", mutates_args=())
def sleep(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


class AfterGradients(torch.autograd.Function):
    """Its backward runs after that of the model's parameters."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.known.sleep(gradient, BACKWARD)


def hook(_state, bucket):
    if LATE is None:
        time.sleep(HOOK)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
    if dist.get_rank() == 1:
        time.sleep(LATE)
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(torch.ops.known.sleep(x.detach(), FORWARD) + AfterGradients.apply(x))


def main():
    model = Model()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(100_000):
        time.sleep(DATA)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


main()
