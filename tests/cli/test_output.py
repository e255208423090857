import pytest

from effdeg.cli._output import spell_as_options, use_spellings


@pytest.fixture(autouse=True)
def _options():
    names = ("degree", "nodes", "paths", "dtype", "at", "batch_size", "output", "tolerance", "seed", "against")
    use_spellings({name: f"--{name.replace('_', '-')}" for name in names})
    yield
    use_spellings({})


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a higher degree=, with nodes= to match", "a higher --degree, with --nodes to match"),
        ("use nodes=6 or more, or degree=4 or less.", "use --nodes 6 or more, or --degree 4 or less."),
        ("degree=-1, tolerance=2e-2.", "--degree -1, --tolerance 2e-2."),
        ("dtype=torch.float32 may be enough", "--dtype float32 may be enough"),
        ("at='embed.0' is not a layer", "--at embed.0 is not a layer"),
        ("choose a layer with at=…", "choose a layer with --at …"),
        ('ask for output="identity"', "ask for --output identity"),
        ("--against='x' is not known", "--against x is not known"),
        # Not options of the command, or nothing that an option could take.
        ("damping=0.1 must be positive", "damping=0.1 must be positive"),
        ("output=lambda y: y[0]", "output=lambda y: y[0]"),
        ("note: nodes = degree + 1", "note: nodes = degree + 1"),
        ("runs/seed=3/w.pt does not exist", "runs/seed=3/w.pt does not exist"),
        ("seed=3/w.pt and seed=3.pt and my-seed=3", "seed=3/w.pt and seed=3.pt and my-seed=3"),
    ],
)
def test_settings_are_written_as_options(message, shown):
    assert spell_as_options(message) == shown


def test_without_options_nothing_changes():
    use_spellings({})
    assert spell_as_options("degree=3") == "degree=3"
