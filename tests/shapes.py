"""The type checker that the shape annotations of the maths are held against."""

from beartype import BeartypeConf, beartype

# A float may be given as an int, as PEP 484 has it: damping=0 is fine.
typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
