"""Several ranks of NCCL on one device, as a machine with a single GPU has it."""

from __future__ import annotations

import os

import torch


def share_device(rank: int) -> None:
    """Call it before the process group is made: NCCL refuses a second rank on a device of the same host.

    With a host id of its own each rank is on another host, and they talk through sockets. The kernels of the ranks take
    turns on the device, so times say nothing.
    """
    if torch.cuda.device_count() == 1:
        os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="lo")
