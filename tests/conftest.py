"""For every test: one thread a process, since two test processes share two cores."""

import torch

torch.set_num_threads(1)
