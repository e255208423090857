"""Run as ``python -m effdeg``, or under ``torchrun -m effdeg``."""

from effdeg.cli._app import main

if __name__ == "__main__":
    main()
