"""cosep: Complementary Separability Pruning for PyTorch image classifiers."""

__version__ = "0.1.0"
