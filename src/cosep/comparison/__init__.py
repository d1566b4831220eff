"""Several ways to choose channels, taken through the same chain at the same widths."""
