# imports
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")  # group
rank = dist.get_rank()
torch.manual_seed(0)
rows, width = 384, 1024  # sizes
network = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))  # model
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# setup

for step in range(60):
    batch = torch.randn(rows, width)  # loading
    optimizer.zero_grad()
    loss = model(batch).square().mean()  # forward
    loss.backward()
    optimizer.step()
    if step % 20 == 0 and rank == 0:
        print(step, loss.item())
    # after step

dist.destroy_process_group()
