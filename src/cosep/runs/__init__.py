"""One run: what is checked before it, where it is, its folder on disk, and its devices and processes."""
