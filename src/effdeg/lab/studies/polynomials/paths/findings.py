"""Does the degree along paths show the total degree, and what of it survives noise?"""

from itertools import combinations, pairwise

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.naming import title
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.report.wording import listed
from effdeg.lab.studies.polynomials.estimates import Estimate
from effdeg.lab.studies.polynomials.paths.run import THRESHOLD
from effdeg.lab.studies.polynomials.paths.values import Followed, followed, has_density, noise_gain

# Standard errors between two means, the clearest of dozens, before one counts as lower.
_BEYOND_NOISE = 4.0


def finding(block: Block) -> Finding:
    """Describe what was found.

    The theorem holds here if, on every line whose examples have a density, no leading coefficient vanishes, no path has
    a degree above the total degree, none below it but where the leading coefficient is too small for float64, and the
    mean degree found rises with the total degree. It does not hold if any of this fails. A line on a lattice, which
    the theorem excludes, decides nothing.

    Args:
        block: The lines.

    Returns:
        The verdict and the sentences.
    """
    dense = {line: followed(line) for line in block.done if has_density(line)}
    lattices = {line: followed(line) for line in block.done if not has_density(line)}
    excluded = [sentence for line, found in lattices.items() for sentence in _excluded(line, found)]
    if not dense:
        return Finding("not decided", ("No line whose examples have a density was run.", *excluded))
    everything = [each for found in dense.values() for each in found]
    kept = not any(each.vanishing or each.unexplained or each.too_high for each in everything)
    falling = [title(line) for line, found in dense.items() if not _rises([each.found for each in found])]
    sentences = [
        _degrees(everything),
        f"The mean degree found does not rise with the total degree in {listed(falling)}."
        if falling
        else "The mean degree found rises with the total degree in every line.",
        *excluded,
        _noise(everything),
        *_order(dense),
    ]
    return Finding("holds" if kept and not falling else "does not hold", tuple(sentences))


def _degrees(everything: list[Followed]) -> str:
    count, dropped = sum(each.count for each in everything), sum(each.dropped for each in everything)
    vanishing, odd = (sum(getattr(each, name) for each in everything) for name in ("vanishing", "unexplained"))
    lost = f"{vanishing:,} lose their leading coefficient" if vanishing else "none loses its leading coefficient"
    said = f"Of {count:,} restrictions to paths, {lost}"
    small = dropped - vanishing - odd
    if small:
        said += (
            f"; on {small:,} ({small / count:.1%}) it is too small for float64, below {THRESHOLD:g} of the "
            "largest coefficient, so that a lower degree is found"
        )
    too_high = sum(each.too_high for each in everything)
    wrong = [f"{odd:,} too low without reason"] * bool(odd) + [f"{too_high:,} too high"] * bool(too_high)
    return f"{said}{f'; {listed(wrong)}' if wrong else '; all others have the total degree'}."


def _excluded(line: Line, found: list[Followed]) -> list[str]:
    share = sum(each.vanishing for each in found) / sum(each.count for each in found)
    last = found[-1]
    return [
        f"Without a density (“{line.row.title}”) it vanishes on {share:.0%}, and total degree {last.degree} looks like "
        f"{last.found:.1f}: the theorem needs its assumption."
    ]


def _noise(everything: list[Followed]) -> str:
    sizes = list(everything[0].noise)
    least = min(each.noise[sizes[0]][0] for each in everything)
    most = [f"{max(noise_gain(each, size) for each in everything):.1%} ({size:.0e})" for size in sizes]
    return (
        f"Noise of {sizes[0]:.0e} of the values' standard deviation raises the mean degree found to at "
        f"least {least:.2f}, whatever the total degree; noise raises ED by at most {listed(most)}."
    )


def _order(dense: dict[Line, list[Followed]]) -> list[str]:
    """State where effective degrees fall as the total degree rises, which the theorem does not exclude."""
    raw = [_fall(line, [(each.degree, each.raw) for each in found]) for line, found in dense.items()]
    normalized = [_fall(line, [(each.degree, each.normalized) for each in found]) for line, found in dense.items()]
    kinds = {"ED of polynomials of equal variance": raw, "normalized ED": normalized}
    return [f"As the total degree rises, {kind} {_falls(falls)}." for kind, falls in kinds.items()]


def _fall(line: Line, along: list[tuple[int, Estimate]]) -> str | None:
    """Describe the clearest fall between two total degrees; None if it is within the noise."""
    falls = [(one.above(other), lower, higher) for (lower, one), (higher, other) in combinations(along, 2)]
    clearest, lower, higher = max(falls, default=(0.0, 0, 0))
    if clearest < _BEYOND_NOISE:
        return None
    values = dict(along)
    before, after = values[lower].value, values[higher].value
    return f"{title(line)} (from {before:.2f} at degree {lower} to {after:.2f} at {higher})"


def _falls(falls: list[str | None]) -> str:
    named = [fall for fall in falls if fall is not None]
    return f"falls in {listed(named)}" if named else "falls nowhere beyond the noise"


def _rises(values: list[float]) -> bool:
    return all(one < other for one, other in pairwise(values))
