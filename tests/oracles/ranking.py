"""The statistics of a ranking as their definitions read: loops over rows of a table, in float64."""

import math
from itertools import combinations, permutations


def sign(number):
    return (number > 0) - (number < 0)


def differ_only_in(one, other, axis, hyperparameters):
    return one[axis] != other[axis] and all(one[name] == other[name] for name in hyperparameters if name != axis)


def product(one, other, measure, target):
    return sign(one[measure] - other[measure]) * sign(one[target] - other[target])


def mean(numbers):
    numbers = [number for number in numbers if not math.isnan(number)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def psi_of(rows, measure, axis, hyperparameters, target="gap"):
    settings = {tuple(row[name] for name in hyperparameters if name != axis) for row in rows}
    taus = []
    for setting in settings:
        inside = [row for row in rows if tuple(row[name] for name in hyperparameters if name != axis) == setting]
        taus.append(mean([product(a, b, measure, target) for a, b in combinations(inside, 2) if a[axis] != b[axis]]))
    return mean(taus)


def psi(rows, measure, hyperparameters, target="gap"):
    return mean([psi_of(rows, measure, axis, hyperparameters, target) for axis in hyperparameters])


def sign_errors(rows, measure, hyperparameters, levels, target="gap"):
    """By (axis, before, after); ``levels`` are the values of each axis in order, of the whole table.

    Numbers step to the next one, texts to any that comes after.
    """
    errors = {}
    for axis in hyperparameters:
        text = any(isinstance(level, str) for level in levels[axis])
        for before, after in combinations(levels[axis], 2):
            if not text and any(before < level < after for level in levels[axis]):
                continue
            found = [
                (1 - product(a, b, measure, target)) / 2
                for a, b in permutations(rows, 2)
                if a[axis] == before and b[axis] == after and differ_only_in(a, b, axis, hyperparameters)
            ]
            if found:
                errors[axis, before, after] = mean(found)
    return errors


def entropy(symbols):
    return -sum(symbols.count(s) / len(symbols) * math.log2(symbols.count(s) / len(symbols)) for s in set(symbols))


def kendall_within(rows, measure, stratum, target="gap"):
    """Kendall's tau_b over the pairs of models that are in one stratum."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if a[stratum] == b[stratum]]
    counted = [sum(abs(sign(a[name] - b[name])) for a, b in pairs) for name in (measure, target)]
    return sum(product(a, b, measure, target) for a, b in pairs) / math.sqrt(counted[0] * counted[1])


def conditional_information(rows, measure, hyperparameters, target="gap", stratum=None):
    """By set of hyperparameters: I(V; G | U) / H(G | U), with U the values of both models, of one stratum if named."""
    found = {}
    pairs = [(a, b) for a, b in permutations(rows, 2) if a[target] != b[target]]
    pairs = [(a, b) for a, b in pairs if stratum is None or a[stratum] == b[stratum]]
    for size in range(3):
        for chosen in combinations(hyperparameters, size):
            cells = {}
            for a, b in pairs:
                value = tuple((a[name], b[name]) for name in chosen)
                signs = sign(a[measure] - b[measure]), sign(a[target] - b[target])
                cells.setdefault(value, []).append(signs)
            information = choice = 0.0
            for signs in cells.values():
                share = len(signs) / len(pairs)
                measures, gaps = [v for v, _ in signs], [g for _, g in signs]
                information += share * (entropy(measures) + entropy(gaps) - entropy(signs))
                choice += share * entropy(gaps)
            if choice > 1e-12:
                found[chosen] = information / choice
    return found
