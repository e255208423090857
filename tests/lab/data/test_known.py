import pickle
import pickletools

import numpy as np
import pytest
import torch

from effdeg.lab.data import load
from tests.lab.data import sets

TRAIN, TEST = sets.examples(20, (3, 32, 32), seed=0), sets.examples(10, (3, 32, 32), seed=1)
GREY_TRAIN, GREY_TEST = sets.examples(20, (1, 28, 28), seed=2), sets.examples(10, (1, 28, 28), seed=3)
WRITERS = {
    "parquet": (sets.write_cifar10_parquet, "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"),
    "pickles": (sets.write_cifar10_pickles, "data_batch_3", "test_batch"),
    "binary": (sets.write_cifar10_binary, "data_batch_3.bin", "test_batch.bin"),
}


@pytest.mark.parametrize("place", ["cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "."])
@pytest.mark.parametrize("layout", WRITERS)
def test_cifar10_is_read_back_from_every_layout(tmp_path, layout, place):
    WRITERS[layout][0](tmp_path / place, TRAIN, TEST)
    loaded = load("cifar10", tmp_path)
    sets.assert_holds(loaded, TRAIN, TEST)
    assert loaded.classes == 10
    assert loaded.mean == (0.4914, 0.4822, 0.4465)
    assert loaded.std == (0.2470, 0.2435, 0.2616)


def test_the_column_of_images_may_have_another_name(tmp_path):
    sets.write_parquet(tmp_path / "train-0.parquet", *TRAIN, column="image")
    sets.write_parquet(tmp_path / "test-0.parquet", *TEST, column="image")
    sets.assert_holds(load("cifar10", tmp_path), TRAIN, TEST)


@pytest.mark.parametrize("layout", WRITERS)
def test_missing_and_damaged_files_of_cifar10_are_named(tmp_path, layout):
    write, part, test = WRITERS[layout]
    folder = tmp_path / "cifar10"
    write(folder, TRAIN, TEST)
    whole = (folder / part).read_bytes()
    for stored in (whole[: len(whole) // 3], whole[:-1], b"", b"nonsense" * 20):
        (folder / part).write_bytes(stored)
        with pytest.raises(ValueError, match=f"{part} cannot be read as .*CIFAR-10|{part} cannot be read as a Parquet"):
            load("cifar10", tmp_path)
    (folder / part).unlink()
    with pytest.raises(FileNotFoundError, match=f"{part}.* is missing"):
        load("cifar10", tmp_path)
    (folder / part).write_bytes(whole)
    (folder / test).unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch|has no test-\*.parquet"):
        load("cifar10", tmp_path)


def test_what_is_in_no_known_place_is_reported_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train-\*.parquet.*data_batch_1 to 5.*cifar10, .*cifar-10-batches-py"):
        load("cifar10", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"mnist was not found: train-images-idx3-ubyte, or the same with .gz"):
        load("mnist", tmp_path)


def test_cifar10_of_another_shape_or_with_other_labels_is_refused(tmp_path):
    small = sets.examples(10, (3, 16, 16), seed=0)
    sets.write_cifar10_parquet(tmp_path / "cifar10", small, small)
    with pytest.raises(ValueError, match="training inputs have the shape 3 × 16 × 16; expected 3 × 32 × 32"):
        load("cifar10", tmp_path)
    sets.write_cifar10_parquet(tmp_path / "cifar10", TRAIN, (TEST[0], TEST[1] + 7))
    with pytest.raises(ValueError, match=r"the test label 1\d \(example \d\) is none of the classes 0, 1, .* 9\."):
        load("cifar10", tmp_path)


class Runs:
    def __init__(self, module):
        self.module = module

    def __reduce__(self):
        return __import__, (self.module,)


def test_pickles_run_no_code(tmp_path):
    sets.write_cifar10_pickles(tmp_path, TRAIN, TEST)
    evil = pickle.dumps({b"data": Runs("antigravity"), b"labels": []}, protocol=2)
    assert "__import__" in "".join(str(argument) for _, argument, _ in pickletools.genops(evil))
    (tmp_path / "data_batch_2").write_bytes(evil)
    with pytest.raises(ValueError, match=r"data_batch_2 cannot be read as a pickled batch.*__import__ has no place"):
        load("cifar10", tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps([1, 2], protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_2 .*: it does not hold data and labels"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_read_back(tmp_path, place, zipped):
    sets.write_mnist(tmp_path / place, GREY_TRAIN, GREY_TEST, zipped=zipped)
    loaded = load("mnist", tmp_path)
    sets.assert_holds(loaded, GREY_TRAIN, GREY_TEST)
    assert (loaded.classes, loaded.mean, loaded.std) == (10, (0.1307,), (0.3081,))


@pytest.mark.parametrize("zipped", [True, False])
def test_missing_and_damaged_files_of_mnist_are_named(tmp_path, zipped):
    sets.write_mnist(tmp_path, GREY_TRAIN, GREY_TEST, zipped=zipped)
    file = tmp_path / f"t10k-images-idx3-ubyte{'.gz' if zipped else ''}"
    whole = file.read_bytes()
    for stored in (whole[: len(whole) // 2], whole[:-1], b"", b"nonsense" * 20):
        file.write_bytes(stored)
        with pytest.raises(ValueError, match=f"{file.name} cannot be read as MNIST's idx file of images"):
            load("mnist", tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-images-idx3-ubyte.gz, MNIST's idx file of images, is missing"):
        load("mnist", tmp_path)


def test_labels_that_are_too_few_are_refused(tmp_path):
    sets.write_mnist(tmp_path, (GREY_TRAIN[0], GREY_TRAIN[1][:-3]), GREY_TEST, zipped=False)
    with pytest.raises(ValueError, match=r"20 training inputs came with labels of the shape \(17,\)"):
        load("mnist", tmp_path)


def test_digits_need_no_folder_and_are_always_split_alike():
    torch.manual_seed(1)
    one = load("digits", None)
    torch.manual_seed(2)
    two = load("digits", None)
    sets.assert_holds(one, (two.train_inputs.numpy(), two.train_labels.numpy()), (two.test_inputs, two.test_labels))
    assert one.train_inputs.shape == (797, 64)
    assert one.test_inputs.shape == (1000, 64)
    assert one.train_inputs.dtype == torch.float32
    assert (one.classes, one.mean, one.std) == (10, (), ())
    assert one.train_inputs.min() == 0
    assert one.train_inputs.max() == 1
    assert set(one.train_labels[:100].tolist()) == set(range(10))  # not sorted by class
    together = torch.cat([one.train_inputs, one.test_inputs]).numpy()
    # Every digit of the file is on one side and keeps its label.
    stored = np.load(sets.DIGITS)
    expected = sets.by_contents((stored["images"].reshape(-1, 64) / 16).astype(np.float32), stored["labels"])
    assert sets.by_contents(together, torch.cat([one.train_labels, one.test_labels])) == expected
