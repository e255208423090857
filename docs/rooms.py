"""A drawing of the library's packages, made from their imports: whoever imports stands above whom it imports."""

import ast
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path
from statistics import fmean

SOURCE = Path(__file__).parent.parent / "src" / "effdeg"
HEIGHT, GAP, ROOM = 52, 44, 190  # of a room, between floors; the width of a room with what separates it from the next


def read_imports() -> dict[str, set[str]]:
    """Return what each package or module of the library imports, but for ``plots``, which ``.plot()`` imports late."""
    names = [each.stem for each in SOURCE.iterdir() if each.stem[:2] != "__" and each.stem not in {"_version", "py"}]
    found: dict[str, set[str]] = {name: set() for name in names}
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        tree = ast.parse(file.read_text())
        branches = [each for each in ast.walk(tree) if isinstance(each, ast.If)]
        unused = {
            id(each) for branch in branches if "TYPE_CHECKING" in ast.unparse(branch.test) for each in ast.walk(branch)
        }
        for node in ast.walk(tree) if room in found else ():
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").split(".")[0] == "effdeg"
                and id(node) not in unused
            ):
                package = (node.module or "").split(".")[1:2]
                imported = {*package} or {alias.name for alias in node.names}
                found[room] |= imported - ({"plots"} if node not in tree.body else set())
    return {room: (imported & found.keys()) - {room} for room, imported in found.items()}


def place(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the floors from the top: a room stands above all that it imports, and just below what imports it."""
    floor: dict[str, int] = {}
    order = list(TopologicalSorter(imports).static_order())
    for room in order:
        floor[room] = 1 + max((floor[each] for each in imports[room]), default=-1)
    for room in reversed(order):
        floor[room] = min((floor[each] - 1 for each in order if room in imports[each]), default=floor[room])
    floors: list[list[str]] = []
    at: dict[str, float] = {}

    def sort_key(room: str, level: int) -> tuple[bool, float, str]:
        """Place a room near what it imports, so that few lines cross; at the side if a line skips a floor."""
        skips = any(floor[each] < level - 1 for each in imports[room])
        return not skips, fmean([at[each] for each in imports[room]] or [0]), room

    for level in range(max(floor.values()) + 1):
        rooms = [room for room in floor if floor[room] == level]
        rooms.sort(key=lambda room: sort_key(room, level))
        at |= {room: index - (len(rooms) - 1) / 2 for index, room in enumerate(rooms)}
        floors.insert(0, rooms)
    return floors


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
    """Draw the rooms as SVG in the colors of the page, with lines to what each imports; those implied are left out."""
    imports = read_imports()
    at, boxes = {}, []
    imports = reduce(imports)
    floors = place(imports)
    width = ROOM * max(map(len, floors))
    for level, floor in enumerate(floors):
        for index, room in enumerate(floor):
            x = width / 2 + (index - (len(floor) - 1) / 2) * ROOM
            y = level * (HEIGHT + GAP)
            at[room] = (x, y)
            kind = "private" if room.startswith("_") else "public"
            boxes.append(
                f'<g class="{kind}"><title>{escape(describe(room))}</title>'
                f'<rect x="{x - ROOM / 2 + 12:g}" y="{y + 1:g}" width="{ROOM - 24}" height="{HEIGHT}" rx="6"/>'
                f'<text x="{x:g}" y="{y + HEIGHT / 2 + 6:g}">{escape(room)}</text></g>'
            )
    lines = []
    for room, found in imports.items():
        for each in sorted(found):
            (x, y), (to_x, to_y) = at[room], at[each]
            top, middle = y + HEIGHT + 1, (y + HEIGHT + to_y) / 2
            lines.append(f'<path d="M{x:g} {top:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"/>')
    height = len(floors) * (HEIGHT + GAP) - GAP + 2
    title = "The packages of effdeg, each above those that it imports: " + "; ".join(
        " and ".join(each) for each in floors
    )
    return (
        f'<svg class="rooms" role="img" viewBox="0 0 {width} {height}" aria-label="{escape(title)}">'
        f"{''.join(lines)}{''.join(boxes)}</svg>"
    )
