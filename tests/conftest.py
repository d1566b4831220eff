"""For every test: one thread a process, unless asked, since two of them share two cores; a short search."""

import os

import pytest
import torch

from cosep.runs import search

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # three, say, in `make test-portable`
WHOLE_SEARCH = search.STEPS
search.STEPS = 2  # each step cuts and rebuilds a network: tests that are not about the search need no more


@pytest.fixture(scope="module")
def whole_search():
    """The search with all its steps, for a module of tests."""
    short, search.STEPS = search.STEPS, WHOLE_SEARCH
    yield
    search.STEPS = short
