"""Run as ``python -m effdeg_lab``, or under ``torchrun -m effdeg_lab``: the same as ``effdeg-lab``."""

from effdeg_lab.cli import main

if __name__ == "__main__":
    main()
