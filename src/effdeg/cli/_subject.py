"""What a command measures: models and examples from files, and the record of where they came from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effdeg.cli._wording import print_aside

if TYPE_CHECKING:
    from effdeg._models.inference import Model
    from effdeg.measure._measurement import Measurement


@dataclass(frozen=True)
class Candidate:
    """A model as it was named on the command line."""

    source: str
    weights: Path | None
    seed: int

    def load(self) -> "Model":
        """Load the model; one whose code draws its weights draws the same ones every time."""
        import numpy as np
        import torch

        from effdeg.io import load_model

        seed = self.seed % 2**32  # numpy's range
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        return load_model(self.source, self.weights)

    @property
    def made_by_code(self) -> bool:
        """Whether the weights are those that the model's code makes."""
        from effdeg.io._models import weights_files

        return not weights_files(self.source, self.weights)

    def record(self) -> dict[str, str | None]:
        """Return where the weights come from, as fields of :class:`effdeg.Settings`."""
        from effdeg.io._models import checksum, weights_files

        if self.made_by_code:
            return {"weights": f"as {self.source} makes them with seed {self.seed}"}
        return {
            "weights": str(self.weights or self.source),
            "weights_sha256": checksum(weights_files(self.source, self.weights)),
        }


@dataclass(frozen=True)
class Data:
    """Examples as they were named on the command line."""

    inputs: Any
    source: str
    preprocessing: str | None

    @classmethod
    def read(cls, source: str, *, key: str | None, size: int | None, mean: str, std: str) -> "Data":
        """Read the examples as the options say."""
        from effdeg.io import ImageOptions, read_data

        images = ImageOptions(size, _numbers("mean", mean), _numbers("std", std))
        loaded = read_data(source, key=key, images=images)
        return cls(loaded.inputs, source if key is None else f"{source}, key {key}", loaded.preprocessing)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Name the layout of the images, where it may be why a model fails."""
        from effdeg.io._data import describe_channels_last

        try:
            yield
        except RuntimeError as error:
            if (hint := describe_channels_last(self.inputs, self.source)) is not None:
                error.add_note(hint)
            raise


def warn_if_untrained(*candidates: Candidate) -> None:
    """Print a note if a model has the weights that its code makes, which are untrained in most cases."""
    made = list(dict.fromkeys(each.source for each in candidates if each.made_by_code))
    if made:
        what = "is measured as its code makes it" if len(made) == 1 else "are measured as their code makes them"
        # On the error stream, so that it comes with --json as well.
        print_aside(
            f"note: no --weights: {', '.join(made)} {what} with --seed {candidates[0].seed}, untrained unless that "
            "code loads trained weights.",
            "[yellow]",
        )


def record(measured: "Measurement", candidate: Candidate, data: Data) -> "Measurement":
    """Return a measurement whose settings say what was measured."""
    described: dict[str, Any] = {"data": data.source, "preprocessing": data.preprocessing, **candidate.record()}
    return replace(measured, settings=replace(measured.settings, **described))


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"--{name} {text!r} is not a list of numbers such as 0.49,0.48,0.45.") from None
