"""The moving picture: what three networks do on paths between digits while they train, as animated SVG."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import baselines
from effdeg.demo import load_digits, network
from effdeg.functional import chebyshev_nodes, effective_degree, fit
from effdeg.plots import THEMES, Theme

STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 48, 58, 70, 85, 100, 120, 150)
METHODS = {"plain": {}, "mixup": {"classes": 10}, "ed": {}}
PATHS, NODES, SECONDS = 8, 31, 0.35
WIDTH, HEIGHT, TOP = 200, 150, 44  # of a panel


def train(name: str) -> list[nn.Module]:
    """Train a network on 50 digits, and return it at every step that is shown."""
    digits = load_digits(per_class=5, seed=0)
    torch.manual_seed(0)
    model, method = network(), baselines.method(name, **METHODS[name])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ramp, shown = effdeg.SineRamp(7.0, steps=50), []
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            shown.append(network())
            shown[-1].load_state_dict(model.state_dict())
        x, y = method.batch(digits.labeled, digits.labels)
        loss = method.loss(model, x, y, cross_entropy, **({"weight": ramp(step)} if name == "ed" else {}))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return shown


@torch.no_grad()
def follow(model: nn.Module) -> tuple[Tensor, float]:
    """Return, along paths between held-out digits, the probability of the right endpoint's class and the mean ED."""
    digits, alpha = load_digits(per_class=5, seed=0), chebyshev_nodes(NODES)
    images, labels = digits.held_out.double(), digits.held_out_labels
    pairs = [(one, one + 1) for one in range(0, 4 * PATHS, 2) if labels[one] != labels[one + 1]][:PATHS]
    points = torch.stack([torch.lerp(images[one], images[two], alpha[:, None]) for one, two in pairs])
    values = model.double()(points.flatten(0, 1)).softmax(1).unflatten(0, points.shape[:2])
    degrees = [effective_degree(fit(path, alpha, 20)).item() for path in values]
    lines = torch.stack([path[:, labels[two]] for path, (_, two) in zip(values, pairs, strict=True)])
    return lines, sum(degrees) / PATHS


def write_svg(frames: dict[str, list[tuple[Tensor, float]]], colors: Theme) -> str:
    """Write frames that a style sheet shows one after the other; without motion, it shows the last one."""
    cycle = SECONDS * (len(STEPS) + 7)  # the last frame stays
    x = (chebyshev_nodes(NODES) * WIDTH).tolist()
    inks = dict(zip(METHODS, (colors.ink, colors.complex, colors.simple), strict=True))
    groups = []
    for index, step in enumerate(STEPS):
        parts = [f'<text x="330" y="236" text-anchor="middle">training step {step}</text>']
        for panel, (name, shown) in enumerate(frames.items()):
            values, degree = shown[index]
            lines = (
                "M" + " ".join(f"{a:.0f} {HEIGHT * (1 - b):.0f}" for a, b in zip(x, path, strict=True))
                for path in values.tolist()
            )
            title = f"{'ED penalty' if name == 'ed' else name}: {degree:.2f}"
            parts.append(
                f'<g transform="translate({10 + 220 * panel} {TOP})"><text y="-14" fill="{inks[name]}" '
                f'font-weight="600">{title}</text><path d="{"".join(lines)}" stroke="{inks[name]}"/></g>'
            )
        last = " class='last'" if index == len(STEPS) - 1 else ""
        groups.append(f'<g{last} style="animation-delay:{index * SECONDS:.2f}s">{"".join(parts)}</g>')
    boxes = "".join(f'<rect x="{10 + 220 * panel}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>' for panel in range(3))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 250" font-family="system-ui, sans-serif" \
font-size="20" fill="{colors.ink}">
<style>
rect {{ fill: none; stroke: {colors.faint}; }}
path {{ fill: none; stroke-width: 1.5; stroke-opacity: 0.75; }}
svg > g {{ opacity: 0; animation: one {cycle:.2f}s step-end infinite; }}
svg > g.last {{ animation-name: last; }}
@keyframes one {{ 0% {{ opacity: 1; }} {100 * SECONDS / cycle:.3f}% {{ opacity: 0; }} }}
@keyframes last {{ 0% {{ opacity: 1; }} {800 * SECONDS / cycle:.3f}% {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce), print {{
  svg > g {{ animation: none; }}
  svg > g.last {{ opacity: 1; }}
}}
</style>
<rect width="660" height="250" style="fill: {colors.ground}; stroke: none"/>
{boxes}
{chr(10).join(groups)}
</svg>
"""


def draw(folder: Path) -> None:
    """Train the networks and write the picture, light and dark."""
    frames = {name: [follow(model) for model in train(name)] for name in METHODS}
    for theme, colors in THEMES.items():
        (folder / f"training-paths-{theme}.svg").write_text(write_svg(frames, colors))
