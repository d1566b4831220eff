"""For every test: one thread a process, since two test processes share two cores, and a short search for the amount."""

import pytest
import torch

from cosep.runs import search

torch.set_num_threads(1)
WHOLE_SEARCH = search.STEPS
search.STEPS = 2  # each step cuts and rebuilds a network: tests that are not about the search need no more


@pytest.fixture(scope="module")
def whole_search():
    """The search with all its steps, for a module of tests."""
    short, search.STEPS = search.STEPS, WHOLE_SEARCH
    yield
    search.STEPS = short
