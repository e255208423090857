import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_runs import small
from test_streaming import CLASSES

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.data import MADE_UP, check, load
from effdeg_lab.models.made_up import draw_jpeg, write_folders, write_tiny_imagenet

pytestmark = pytest.mark.filterwarnings("ignore:data=imagenet has 10 classes")
# What makes a run short; all else is the recipe's.
SHORT = {"epochs": 2, "batch": 32, "evaluate_every": 2}
MEASURED = {name: getattr(small(), name) for name in ("measure_paths", "measure_nodes", "measure_degree")}


def write_data(folder):
    """Write ImageNet as folders of classes, and Tiny-ImageNet as tables, in which all images are of one size."""
    numbers = {"train": range(7), "val": range(7, 9)}
    rows = {split: [(label, number) for number in each for label in range(CLASSES)] for split, each in numbers.items()}
    write_folders(
        folder / "imagenet", {split: [(*row, draw_jpeg(*row)) for row in each] for split, each in rows.items()}
    )
    write_tiny_imagenet(folder / "tiny-imagenet", rows)
    (folder / MADE_UP).touch()
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "sets")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))


def shorten(name, method):
    recipe = find_recipe(name)
    settings = recipe.resolve(recipe.method(method))
    streamed = {"pixels": 32, "warm_up_steps": 1} if settings.pixels else {}
    model = settings.model.replace("vit-s16", "vit-mu16").replace("vit-s8", "vit-mu8")
    return settings.change({**SHORT, **MEASURED, **streamed, "model": model})


def test_further_test_images_of_tiny_imagenets_classes(tmp_path, data):
    """Only those of its classes count, whatever their numbers are there."""
    (tmp_path / "tiny-imagenet").mkdir()
    (tmp_path / MADE_UP).touch()
    for file in (data / "tiny-imagenet").iterdir():
        (tmp_path / "tiny-imagenet" / file.name).symlink_to(file)
    assert load("tiny-imagenet", tmp_path).shifted == {}
    with pytest.raises(FileNotFoundError, match=r"tiny-imagenet was not found: expected train-\*.parquet"):
        load("tiny-imagenet", data / "imagenet")
    (tmp_path / "val5").mkdir()
    cells = [{"bytes": draw_jpeg(9, 1), "path": f"n{wnid}/{wnid}.JPEG"} for wnid in (7, 50, 0, 7)]
    cells[3]["path"] = "n7/other.JPEG"
    pq.write_table(pa.table({"image": cells, "label": [600, 50, 0, 600]}), tmp_path / "val5" / "val-0.parquet")
    with pytest.raises(FileNotFoundError, match=r"classes\.tsv is missing: .*val5 needs the number"):
        check("tiny-imagenet", tmp_path)
    names = tmp_path / "tiny-imagenet" / "classes.tsv"
    names.write_text("".join(f"{number}\tn{number}\ta word\n" for number in range(CLASSES)))
    ((name, (images, labels)),) = load("tiny-imagenet", tmp_path).shifted.items()
    assert (name, images.shape, labels.tolist()) == ("val5", (3, 3, 48, 48), [7, 0, 7])
    names.write_text("0\tn99\n")
    with pytest.raises(ValueError, match=r"val5 has no images of the classes in .*: expected paths n99/FILE"):
        load("tiny-imagenet", tmp_path)
