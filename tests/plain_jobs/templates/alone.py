# imports
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
rows, width = 512, 1024  # sizes
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))  # model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# setup

for step in range(60):
    batch = torch.randn(rows, width)  # loading
    optimizer.zero_grad()
    loss = model(batch).square().mean()  # forward
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
    # after step
