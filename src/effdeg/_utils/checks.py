"""Errors for people: what was given, what was expected, what to do."""

import difflib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any


def check_choice(name: str, value: object, options: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``options``, naming the closest ones."""
    options = list(options)
    if value not in options:
        raise ValueError(f"{name}={value!r} is not known. {suggest(str(value), options)}")


def suggest(name: str, options: Iterable[str]) -> str:
    """Name the options that are close to a misspelled name, or list them all when none is."""
    options = list(dict.fromkeys(options))
    close = difflib.get_close_matches(name, options, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(repr(option) for option in close)}?"
    return f"Choose from: {shorten([repr(option) for option in options], 20)}."


def shorten(names: Sequence[str], most: int = 3) -> str:
    """Join names with commas, leaving out those after the first ``most``."""
    return ", ".join([*names[:most], "…"] if len(names) > most else names)


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun: 1 model, 2 models."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def check_count(name: str, value: object, *, least: int) -> int:
    """Return ``value`` as a Python int, also if it is numpy's; raise unless it is ``least`` or more, in 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={value!r} must be a whole number, at least {least}.")
    if int(value) < least:
        raise ValueError(f"{name}={value} is too small: it must be at least {least}.")
    if int(value) >= 2**63:
        raise ValueError(f"{name}={value} is too large: it must be below 2**63.")
    return int(value)


def check_fit(nodes: int, degree: int, *, least_degree: int = 0) -> None:
    """Raise unless ``nodes`` nodes determine a polynomial of this degree."""
    check_count("degree", degree, least=least_degree)
    if nodes < degree + 1:
        lower = f", or degree={nodes - 1} or less" if nodes > least_degree else ""
        raise ValueError(
            f"nodes={nodes} cannot determine a polynomial of degree={degree}, which has {degree + 1} coefficients. "
            f"Use nodes={degree + 1} or more{lower}."
        )


def check_components(components: int, nodes: int) -> None:
    """Raise unless values at ``nodes`` nodes can have ``components`` principal components."""
    check_count("components", components, least=1)
    if nodes < 2:
        raise ValueError(f"nodes={nodes} shows no variation to find components of: use at least 2 nodes.")
    if components > nodes - 1:
        raise ValueError(
            f"components={components} is too many for nodes={nodes}: centered values at {nodes} nodes vary in at most "
            f"{nodes - 1} directions. Use components={nodes - 1} or less, or more nodes."
        )


def check_degree_weights(weights: object, degree: int) -> Any:
    """Return the weights of degrees, a sequence as a tuple; raise unless they are known or one number per degree."""
    if isinstance(weights, str):
        check_choice("weights", weights, ("degree", "square"))
        return weights
    weights = weights.tolist() if hasattr(weights, "tolist") else weights  # an array of numpy
    if not isinstance(weights, Sequence):
        raise TypeError(f"weights={weights!r} must be 'degree', 'square', or a list of {degree + 1} numbers.")
    numbers = tuple(check_number("weights", each, "they weigh the degrees", zero=True) for each in weights)
    if len(numbers) != degree + 1:
        raise ValueError(
            f"weights={list(weights)} are {pluralize(len(numbers), 'number')}; polynomials of degree {degree} need "
            f"{degree + 1}, one for each degree from 0 to {degree}."
        )
    if not any(numbers):
        raise ValueError(f"weights={list(weights)} are all zero, so there would be nothing to measure.")
    return numbers


def check_damping(damping: object) -> None:
    """Raise unless the damping of the fit is a finite number that is not negative."""
    check_number("damping", damping, "it is the eps of the fit, and zero is plain least squares", zero=True)


def check_number(name: str, value: object, meaning: str, *, zero: bool = False) -> float:
    """Return ``value`` as a float; raise unless it is finite and positive, or zero where ``zero`` allows it."""
    expected = "zero or positive" if zero else "positive"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} must be a number, {expected}: {meaning}.")
    number = float(value)
    if not (0 <= number < math.inf if zero else 0 < number < math.inf):
        raise ValueError(f"{name}={value!r} must be {expected} and finite: {meaning}.")
    return number


def check_weight(weight: object, *, varying: str = "") -> float:
    """Return the weight of a penalty; raise unless it can be one. ``varying`` says how to give one that changes."""
    changing = f". One that changes during training {varying}" if varying else ""
    return check_number("weight", weight, f"it is how much the penalty counts{changing}", zero=True)


def check_flag(name: str, value: object) -> None:
    """Raise unless ``value`` is True or False: most other things, such as "no", would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False.")


def check_generator(generator: object) -> None:
    """Raise unless ``generator`` can be drawn from, or is None for torch's global one."""
    import torch  # only here, so that a command can check its options before torch is loaded

    if generator is not None and not isinstance(generator, torch.Generator):
        seeded = "generator=torch.Generator().manual_seed(0)"
        raise TypeError(f"generator={generator!r} must be a torch.Generator or None. For a seed: {seeded}.")
