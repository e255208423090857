import numpy as np
import pytest
import torch
from PIL import Image

from effdeg_lab.data import MADE_UP, check, load
from effdeg_lab.data.images import IMAGENET_SCALE, Crop, Images, store_folders, store_tables
from effdeg_lab.data.pacs import DOMAINS, find_pacs
from effdeg_lab.data.shifts import SHIFTS, find_test_set, read_classes
from effdeg_lab.models.made_up import paint, write_pacs, write_table

ALL = read_classes()
CROP = Crop(4)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))


def color(number):
    """Return a color that is the number of a class."""
    return (number % 256, number // 256, 7)


def write(folder, name, number, files=("a.png",), size=(4, 4)):
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / name / file).write_bytes(paint(color(number), size))


def get_numbers(test_set):
    found = torch.stack([test_set.images[index][:, 1, 1] for index in range(len(test_set))]).int()
    assert bool((found[:, 2] == 7).all())
    return (found[:, 0] + 256 * found[:, 1]).tolist()


def test_the_class_lists_are_the_published_ones():
    assert (ALL[0].wnid, ALL[0].name, ALL[1].name, ALL[999].wnid) == ("n01440764", "tench", "goldfish", "n15075141")
    # From the lists of numbers in hendrycks/imagenet-r and hendrycks/natural-adv-examples.
    in_r, in_a = ([number for number, each in enumerate(ALL) if getattr(each, key)] for key in ("in_r", "in_a"))
    assert (in_r[:10], sum(in_r)) == ([1, 2, 4, 6, 8, 9, 11, 13, 22, 23], 86135)
    assert (in_a[:10], sum(in_a)) == ([6, 11, 13, 15, 17, 22, 23, 27, 30, 37], 102178)
    assert len({*in_r} & {*in_a}) == 86
    groups = {}
    for number, each in enumerate(ALL):
        groups.setdefault(each.objectnet, []).append(number)
    assert groups["alarm_clock"] == [409, 530]  # analog and digital clock
    assert groups["bicycle"] == [444, 671]  # tandem and mountain bike
    assert groups["banana"] == [954]


@pytest.mark.parametrize(("name", "classes"), [("imagenet-v2", 1000), ("imagenet-r", 200)])
def test_folders_are_named_by_wordnet_id(tmp_path, name, classes):
    for number, each in enumerate(ALL):
        if each.in_r or classes == 1000:
            write(tmp_path / name, each.wnid, number)
    (tmp_path / name / "README.txt").write_text("not a class")
    (tmp_path / name / ALL[6].wnid / "notes.txt").write_text("not an image")
    found = find_test_set(name, tmp_path, CROP)
    assert len(found) == len(found.counts_as) == classes
    assert [(number,) for number in get_numbers(found)] == [found.counts_as[label] for label in found.labels]
    part = found.take(10)
    assert len(part) == 10
    assert [(number,) for number in get_numbers(part)] == [part.counts_as[label] for label in part.labels]
    assert part.labels[-1] == found.labels[-1]
    assert len(found.take(5000)) == classes


def test_logits_are_restricted_to_the_classes_of_the_set(tmp_path):
    for each in ALL:
        if each.in_a:
            write(tmp_path / "imagenet-a", each.wnid, 0)
        if each.objectnet:
            write(tmp_path / "objectnet", each.objectnet, 0)
    logits = torch.randn(5, 1000)
    of_a = find_test_set("imagenet-a", tmp_path, CROP).project(logits)
    assert torch.equal(of_a, logits[:, [each.in_a for each in ALL]])
    objectnet = find_test_set("objectnet", tmp_path, CROP)
    folders = sorted({each.objectnet for each in ALL} - {""})
    expected = [[max(row[n] for n, each in enumerate(ALL) if each.objectnet == f) for f in folders] for row in logits]
    assert torch.equal(objectnet.project(logits), torch.tensor(expected))
    with pytest.raises(ValueError, match=r"ImageNet's 1,000 classes; given \(5, 200\)"):
        objectnet.project(logits[:, :200])


def test_what_is_missing_or_wrong_is_named(tmp_path):
    for name in SHIFTS:
        with pytest.raises(FileNotFoundError, match=f"{name} was not found: expected "):
            find_test_set(name, tmp_path, CROP)
    write(tmp_path / "imagenet-r", ALL[1].wnid, 1)
    with pytest.raises(FileNotFoundError, match=f"no images of 199 of the 200 classes of imagenet-r: {ALL[2].wnid}, "):
        find_test_set("imagenet-r", tmp_path, CROP)
    write(tmp_path / "imagenet-r", ALL[0].wnid, 0)  # a class of ImageNet, but not of this set
    with pytest.raises(ValueError, match=f"{ALL[0].wnid} is not a class of imagenet-r: expected folders such as "):
        find_test_set("imagenet-r", tmp_path, CROP)


def test_the_crop_is_the_center_of_the_resized_image():
    draw = np.random.default_rng(0)
    image = Image.fromarray(draw.integers(0, 256, (50, 33, 3), dtype=np.uint8))
    resized = np.asarray(image.resize((16, 24), Image.Resampling.BICUBIC))  # 16 · 50/33 = 24.2
    found = Crop(14, short=16)(image)
    assert (found.shape, found.dtype) == ((3, 14, 14), torch.uint8)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), resized[5:19, 1:15])
    same = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    assert np.array_equal(Crop(8)(same).permute(1, 2, 0).numpy(), np.asarray(same))
    assert Crop(8)(same.convert("L")).shape == Crop(8)(same.convert("CMYK")).shape == (3, 8, 8)
    for bad in ({"size": 0}, {"size": 8, "short": 7}):
        with pytest.raises(ValueError, match="expected 1 <= size <= short"):
            Crop(**bad)


def test_a_damaged_image_is_named(tmp_path):
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "broken.png").write_bytes(paint(0)[:30])
    with pytest.raises(ValueError, match=r"pets/broken\.png cannot be read as an image"):
        Images(store_folders(tmp_path, {"pets": 0}), CROP, "pets")[0]
    write_table(tmp_path / "pets.parquet", {"0.png": paint(0), "1.png": b"nothing"})
    with pytest.raises(ValueError, match=r"1\.png in row 1 of .*pets\.parquet cannot be read as an image"):
        Images(store_tables([tmp_path / "pets.parquet"], labeled=False), CROP, "pets").decode()


@pytest.mark.parametrize("tables", [False, True])
def test_pacs_is_decoded_once_unless_it_changes(tmp_path, monkeypatch, tables):
    decoded, decode = [], Images.decode
    monkeypatch.setattr(Images, "decode", lambda images: decoded.append(images.name) or decode(images))
    write_pacs(tmp_path / "pacs", tables=tables)
    first = find_pacs(tmp_path, CROP)()
    first["photo"][0].zero_()  # does not reach what is kept
    for again in (find_pacs(tmp_path, CROP)(), find_pacs(tmp_path, CROP)()):
        assert torch.equal(again["photo"][0][:, 0, 0, 0].long(), again["photo"][1])
        assert torch.equal(again["sketch"][0], first["sketch"][0])
    assert decoded == [*DOMAINS]
    assert find_pacs(tmp_path, Crop(5))()["photo"][0].shape[-1] == 5
    assert len(decoded) == 8
    write_pacs(tmp_path / "pacs", tables=tables, brighter=9)
    assert find_pacs(tmp_path, CROP)()["photo"][0][0, 1, 0, 0] == 9
    assert len(decoded) == 12


def test_photos_are_split_and_the_other_domains_are_shifts(tmp_path):
    write_pacs(tmp_path / "pacs", tables=True)
    check("pacs", tmp_path)
    data, pacs = load("pacs", tmp_path, 6), find_pacs(tmp_path, Crop(6))()
    assert (len(data.train_labels), len(data.test_labels), data.classes) == (16, 5, 7)  # of 21
    photos, labels = pacs.pop("photo")
    assert torch.equal(torch.cat([data.train_inputs, data.test_inputs]), photos)
    assert torch.equal(torch.cat([data.train_labels, data.test_labels]), labels)
    assert (data.mean, data.std) == IMAGENET_SCALE
    assert list(data.shifted) == ["art_painting", "cartoon", "sketch"]
    for domain, found in data.shifted.items():
        assert all(map(torch.equal, found, pacs[domain]))
    assert load("pacs", tmp_path).train_inputs.shape[1:] == (3, 224, 224)


def write_cifar10(folder):
    (folder / MADE_UP).touch()
    images = {f"{number}.png": paint(0, (32, 32)) for number in range(10)}
    for split in ("train", "test"):
        write_table(folder / "cifar10" / f"{split}-00000-of-00001.parquet", images, label=[*range(10)])


def test_conflicting_cues_are_labeled_by_their_shape(tmp_path):
    write_cifar10(tmp_path)
    assert load("cifar10", tmp_path, 12).shifted == {}
    paths = ["cat/cat7-dog2.png", "knife/knife1-cat1.png", "boat/boat10-cat12.png", "cat/cat1-cat3.png"]
    paths += ["car/car2-bear1.png", "airplane/airplane1-oven1.png", "truck/truck1-bird1.png", "dog/dog3-cat3.png"]
    images = {path: paint((place, 0, 0), (24, 24)) for place, path in enumerate(paths)}
    write_table(tmp_path / "shapes" / "cue-conflict-00000-of-00001.parquet", images)
    ((name, (images, labels)),) = load("cifar10", tmp_path, 12).shifted.items()
    assert (name, images.shape) == ("cue conflict", (6, 3, 12, 12))
    assert images[:, 0, 5, 5].tolist() == [0, 2, 4, 5, 6, 7]
    # In the order of CIFAR-10: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.
    assert labels.tolist() == [3, 8, 1, 0, 9, 5]
    assert load("cifar10", tmp_path).shifted == {}  # too large for networks on 32 pixels


def test_what_is_wrong_with_pacs_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="PACS was not found: expected"):
        find_pacs(tmp_path, CROP)
    write_pacs(tmp_path / "pacs", tables=True)
    (tmp_path / "pacs" / "sketch-00000-of-00001.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"0 of 1 sketch-\*\.parquet"):
        find_pacs(tmp_path, CROP)
    write_table(tmp_path / "pacs" / "sketch-00000-of-00001.parquet", {"cat/1.png": paint(0)}, label=[0])
    with pytest.raises(ValueError, match=r"sketch of PACS has cat/1\.png, which is in none of dog, elephant"):
        find_pacs(tmp_path, CROP)()
