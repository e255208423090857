"""Run as ``python -m effdeg``, or under ``torchrun -m effdeg``."""

from effdeg.cli.app import main

main()
