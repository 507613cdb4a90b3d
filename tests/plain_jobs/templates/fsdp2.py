# imports
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")  # group
rank = dist.get_rank()
torch.manual_seed(0)
rows, width = 256, 512  # sizes
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))  # model
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
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
