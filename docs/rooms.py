"""A drawing of the library's packages, made from their imports: whoever imports stands above whom it imports."""

import ast
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "effdeg"
WIDTH, HEIGHT, GAP, ROOM = 880, 58, 34, 208


def read_imports() -> dict[str, set[str]]:
    """Return, for each package or module of the library, those that it imports at once; late imports do not count."""
    names = [each.stem for each in SOURCE.iterdir() if each.stem[:2] != "__" and each.stem not in {"_version", "py"}]
    found: dict[str, set[str]] = {name: set() for name in names}
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.parse(file.read_text()).body if room in found else []:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("effdeg."):
                found[room].add((node.module or "").split(".")[1])
    return {room: (imported & found.keys()) - {room} for room, imported in found.items()}


def place(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the floors from the top: a room stands one floor above the highest that it imports."""
    floor: dict[str, int] = {}
    for room in TopologicalSorter(imports).static_order():
        floor[room] = 1 + max((floor[each] for each in imports[room]), default=-1)
    return [sorted(room for room in floor if floor[room] == level) for level in range(max(floor.values()), -1, -1)]


def reduce(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out an import that others imply."""

    def below(room: str) -> set[str]:
        return imports[room].union(*(below(each) for each in imports[room]))

    return {room: found - set().union(*(below(each) for each in found)) for room, found in imports.items()}


def describe(room: str) -> str:
    """Return what a package says about itself, up to the first stop."""
    file = SOURCE / room / "__init__.py" if (SOURCE / room).is_dir() else SOURCE / f"{room}.py"
    doc = ast.get_docstring(ast.parse(file.read_text())) or ""
    return doc.partition("\n")[0]


def draw() -> str:
    """Draw the rooms as SVG in the colors of the page, each with its imports as lines, those that others imply left out."""
    imports = read_imports()
    at, boxes = {}, []
    floors = place(imports)
    for level, floor in enumerate(floors):
        for index, room in enumerate(floor):
            x = WIDTH / 2 + (index - (len(floor) - 1) / 2) * (ROOM + 24)
            y = level * (HEIGHT + GAP)
            at[room] = (x, y)
            kind = "private" if room.startswith("_") else "public"
            boxes.append(
                f'<g class="{kind}"><title>{escape(describe(room))}</title>'
                f'<rect x="{x - ROOM / 2:g}" y="{y + 1:g}" width="{ROOM}" height="{HEIGHT}" rx="6"/>'
                f'<text x="{x:g}" y="{y + HEIGHT / 2 + 6:g}">{escape(room)}</text></g>'
            )
    lines = []
    for room, found in reduce(imports).items():
        for each in sorted(found):
            (x, y), (to_x, to_y) = at[room], at[each]
            top, middle = y + HEIGHT + 1, (y + HEIGHT + to_y) / 2
            lines.append(f'<path d="M{x:g} {top:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"/>')
    height = len(floors) * (HEIGHT + GAP) - GAP + 2
    title = "The packages of effdeg, each above those that it imports: " + "; ".join(" and ".join(each) for each in floors)
    return (
        f'<svg class="rooms" role="img" viewBox="0 0 {WIDTH} {height}" aria-label="{escape(title)}">'
        f"{''.join(lines)}{''.join(boxes)}</svg>"
    )
