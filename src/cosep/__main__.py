"""python -m cosep: the same as the command `cosep`."""

from cosep.cli import main

if __name__ == "__main__":
    main()
