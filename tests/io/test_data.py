import io
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import effdeg
from effdeg.io import ImageList, ImageOptions, load_data
from effdeg.io._data import load_labels
from tests.cli import networks

RNG = np.random.default_rng(0)
X = RNG.random((6, 4), dtype=np.float32)


def load(*arguments, **options):
    return load_data(*arguments, **options).inputs


def picture(seed, size=(8, 6), mode="RGB"):
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def png(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def test_arrays(tmp_path):
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "one.npz", x=X)
    np.savez(tmp_path / "two.npz", x_test=X, x_train=X + 1, labels=np.arange(6))
    torch.save(torch.from_numpy(X), tmp_path / "a.pt")
    save_file({"x": torch.from_numpy(X)}, tmp_path / "a.safetensors")
    for name in ("a.npy", "one.npz", "a.pt", "a.safetensors"):
        np.testing.assert_array_equal(load(tmp_path / name).numpy(), X)
    np.testing.assert_array_equal(load(tmp_path / "two.npz", key="x_train").numpy(), X + 1)
    assert set(load(tmp_path / "two.npz")) == {"x_test", "x_train"}


@pytest.mark.parametrize("kind", [">f4", np.longdouble])
def test_numbers_of_other_machines_are_converted(tmp_path, kind):
    values = (X * 100).astype(kind)
    np.save(tmp_path / "x.npy", values)
    np.testing.assert_array_equal(load(tmp_path / "x.npy").numpy(), values.astype(float))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_image_arrays_are_treated_as_image_files_are(tmp_path, mode):
    # Smooth images: what the filter overshoots at edges, Pillow cuts off between its two passes.
    waves = np.sin(np.arange(4)[:, None, None] + np.linspace(0, 2, 12)[:, None] + np.linspace(0, 3, 16))
    gray = np.uint8(128 + 100 * waves)
    images = [Image.fromarray(np.stack([image, image // 2, 255 - image], -1)) for image in gray]
    images = [image.convert(mode) for image in images]
    (tmp_path / "files").mkdir()
    for index, image in enumerate(images):
        image.save(tmp_path / "files" / f"{index}.png")
    pixels = np.stack([np.asarray(image) for image in images])
    pixels = pixels.transpose(0, 3, 1, 2) if mode == "RGB" else pixels[:, None]
    np.save(tmp_path / "bytes.npy", pixels)
    np.savez(tmp_path / "bytes.npz", images=pixels, labels=np.arange(4))
    torch.save((torch.from_numpy(pixels) / 255, torch.arange(4)), tmp_path / "floats.pt")
    for options in (ImageOptions(mean=(0.5,) * len(pixels[0]), std=(0.2,)), *map(ImageOptions, (8, 20))):
        expected = torch.stack(list(load(tmp_path / "files", images=options)))
        for name in ("bytes.npy", "bytes.npz", "floats.pt"):
            found = load(tmp_path / name, images=options)
            # Pillow and torch resize with one filter, but round differently.
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if options.size is None else 1.5 / 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0 is too small"),
        ({"size": (4, 4)}, "must be a whole number"),
        ({"mean": 0.5}, r"mean=0.5 must be a tuple of numbers, such as \(0.5,\)"),
        ({"mean": (0.5, np.nan)}, "mean=0.5,nan: expected finite numbers"),
        ({"std": (0.0,)}, "std=0.0: .*must be positive"),
    ],
)
def test_options_for_images_are_checked(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ImageOptions(**options)
    assert ImageOptions(mean=np.array([0.5, 0.25])).mean == (0.5, 0.25)


def test_what_was_done_to_the_examples_is_said(tmp_path):
    pixels = RNG.integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "bytes.npy", pixels)
    np.savez(tmp_path / "xy.npz", x=X, y=np.arange(6))
    np.save(tmp_path / "plain.npy", X)
    options = ImageOptions(size=4, mean=(0.49, 0.48, 0.45), std=(0.25,))
    assert load_data(tmp_path / "bytes.npy").preprocessing == "bytes scaled to [0, 1]"
    done = "size 4, mean 0.49,0.48,0.45, std 0.25, bytes scaled to [0, 1]"
    assert load_data(tmp_path / "bytes.npy", images=options).preprocessing == done
    assert load_data(tmp_path / "xy.npz").preprocessing == "labels left out"
    assert load_data(tmp_path / "xy.npz", key="x").preprocessing is None
    assert load_data(tmp_path / "plain.npy").preprocessing is None


def test_options_for_images_are_refused_for_what_is_none(tmp_path):
    options = ImageOptions(mean=(0.5,))
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(ValueError, match=r"are for images: bytes .*a.npy holds float32 of the shape \(6, 4\)"):
        load(tmp_path / "a.npy", images=options)
    np.save(tmp_path / "integers.npy", np.zeros((4, 3, 8, 8), dtype=np.int64))
    with pytest.raises(ValueError, match=r"integers.npy holds int64 of the shape \(4, 3, 8, 8\)"):
        load(tmp_path / "integers.npy", images=options)
    np.savez(tmp_path / "two.npz", a=np.zeros((4, 3, 8, 8)), b=np.zeros((4, 3, 8, 8)))
    with pytest.raises(ValueError, match=r"two.npz holds a, b; choose the images with key="):
        load(tmp_path / "two.npz", images=options)
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1]}), tmp_path / "numbers.parquet")
    with pytest.raises(ValueError, match=r"numbers.parquet has none, but numbers in a, b"):
        load(tmp_path / "numbers.parquet", images=options)
    np.save(tmp_path / "hwc.npy", np.zeros((4, 8, 8, 3)))
    with pytest.raises(ValueError, match=r"N × height × width × channels, \(4, 8, 8, 3\).*x.transpose\(0, 3, 1, 2\)"):
        load(tmp_path / "hwc.npy", images=options)
    np.save(tmp_path / "large.npy", np.full((4, 3, 8, 8), 255.0))
    with pytest.warns(UserWarning, match=r"pixels in \[0, 1\], but the pixels of .*large.npy lie between 255 and 255"):
        load(tmp_path / "large.npy", images=options)


@pytest.mark.parametrize(
    "saved",
    [
        [torch.zeros(3, 8, 8), torch.ones(3, 8, 8)],  # two examples, or two batches of three
        (torch.zeros(5, 8), torch.zeros(5, 3)),  # soft labels, or a second input
        (torch.zeros(5, 8), torch.zeros(4, dtype=torch.int64)),
    ],
)
def test_a_list_of_tensors_is_not_taken_for_its_first(tmp_path, saved):
    torch.save(saved, tmp_path / "list.pt")
    with pytest.raises(ValueError, match=rf"of {len(saved)} tensors.*torch.stack\(list\).*torch.cat\(list\)"):
        load(tmp_path / "list.pt")


@pytest.mark.parametrize("labels", [torch.arange(6), torch.arange(6)[:, None], torch.zeros(6) > 1])
def test_labels_saved_with_the_inputs_are_left_out(tmp_path, labels):
    torch.save([torch.from_numpy(X), labels], tmp_path / "pair.pt")
    loaded = load_data(tmp_path / "pair.pt")
    np.testing.assert_array_equal(loaded.inputs.numpy(), X)
    assert loaded.preprocessing == "labels left out"


def test_bytes_of_masks_and_ids_are_not_scaled(tmp_path):
    pixels, flags = RNG.integers(2, 256, (5, 7), dtype=np.uint8), RNG.integers(0, 2, (5, 7), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", pixels=pixels, attention_mask=flags, input_ids=pixels)
    inputs = load_data(tmp_path / "x.npz").inputs
    np.testing.assert_array_equal(inputs["pixels"], pixels.astype(np.float32) / 255)
    for name, expected in {"attention_mask": flags, "input_ids": pixels}.items():
        assert inputs[name].dtype == torch.int64
        np.testing.assert_array_equal(inputs[name], expected)


def test_bytes_of_0_and_1_are_told(tmp_path):
    np.save(tmp_path / "binary.npy", np.eye(4, dtype=np.uint8))
    with pytest.warns(UserWarning, match=r"binary\.npy holds bytes of 0 and 1, and bytes are divided by 255"):
        loaded = load_data(tmp_path / "binary.npy")
    np.testing.assert_allclose(loaded.inputs, np.eye(4) / 255, rtol=1e-6)


def test_pixels_that_are_not_bytes_are_refused(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "images" / "0.png")
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(tmp_path / "images" / "1.png")
    with pytest.raises(ValueError, match=r"1\.png cannot be read as an image: its pixels are not bytes"):
        load_data(tmp_path / "images")
    Image.new("RGB", (4, 4)).save(tmp_path / "images" / "0.png")
    with pytest.raises(ValueError, match=r"1\.png cannot be read as an image: its pixels are not bytes"):
        load_data(tmp_path / "images").inputs[1]


def test_a_mean_of_pixels_from_0_to_255_is_refused(tmp_path):
    np.save(tmp_path / "bytes.npy", np.full((2, 3, 8, 8), 200, dtype=np.uint8))
    np.save(tmp_path / "floats.npy", np.full((2, 3, 8, 8), 0.7, dtype=np.float32))
    for name, given in (("mean", (123.7, 116.3, 103.5)), ("std", (58.4,))):
        for file in ("bytes.npy", "floats.npy"):
            with pytest.raises(ValueError, match=rf"{name}=\d.* pixels lie in \[0, 1\].* Divide it by 255"):
                load_data(tmp_path / file, images=ImageOptions(**{name: given}))
    np.save(tmp_path / "wide.npy", np.full((2, 3, 8, 8), 200, dtype=np.float32))
    with pytest.warns(UserWarning, match="pixels of .* lie between 200 and 200"):
        load_data(tmp_path / "wide.npy", images=ImageOptions(mean=(123.7, 116.3, 103.5)))


def test_images_with_channels_last_are_noticed(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 3), dtype=np.float32))
    with pytest.warns(UserWarning, match="seems to hold images as N × height × width × channels"):
        assert load_data(tmp_path / "x.npy").inputs.shape == (2, 8, 8, 3)


def test_the_index_of_a_shuffled_table_is_no_feature(tmp_path):
    table = pd.DataFrame(X, columns=[f"x{place}" for place in range(X.shape[1])]).iloc[::-1]
    table.to_parquet(tmp_path / "shuffled.parquet")
    np.testing.assert_allclose(load(tmp_path / "shuffled.parquet"), X[::-1])


def test_parquet_with_images_as_the_hub_stores_them(tmp_path):
    images = [picture(seed) for seed in range(5)]
    cells = [{"bytes": png(image), "path": None} for image in images]
    pq.write_table(pa.table({"img": cells, "label": list(range(5))}), tmp_path / "hub.parquet")
    data = load(tmp_path / "hub.parquet")
    assert len(data) == 5
    expected = np.asarray(images[3], dtype=np.float32).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(data[3].numpy(), expected)
    measured = effdeg.measure(networks.colors(), data, paths=10, nodes=8, degree=4)
    assert measured.settings.examples == 5
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array([png(image) for image in images], kind)
        pq.write_table(pa.table({"picture": column, "size": [{"width": 8}] * 5}), tmp_path / "plain.parquet")
        np.testing.assert_allclose(load(tmp_path / "plain.parquet", key="picture")[3].numpy(), expected)
        np.testing.assert_allclose(load(tmp_path / "plain.parquet")[3].numpy(), expected)
    pq.write_table(pa.table({"image": cells, "mask": cells}), tmp_path / "two.parquet")
    with pytest.raises(ValueError, match=r"two.parquet has images in image, mask. Choose the examples: key='image'"):
        load(tmp_path / "two.parquet")
    assert len(load(tmp_path / "two.parquet", key="mask")) == 5


def test_parquet_with_numbers(tmp_path):
    columns = {"a": X[:, 0], "b": X[:, 1], "name": list("uvwxyz"), "label": np.arange(6)}
    pq.write_table(pa.table(columns), tmp_path / "numbers.parquet")
    np.testing.assert_array_equal(load(tmp_path / "numbers.parquet").numpy(), X[:, :2])
    np.testing.assert_array_equal(load(tmp_path / "numbers.parquet", key="b").numpy(), X[:, 1:2])
    with pytest.raises(ValueError, match="has no column 'c'; it has a, b, name, label"):
        load(tmp_path / "numbers.parquet", key="c")
    with pytest.raises(ValueError, match="neither images nor numbers in name"):
        load(tmp_path / "numbers.parquet", key="name")
    pq.write_table(pa.table({"a": X[:, 0], "flag": pa.array([True, False, None] * 2)}), tmp_path / "flags.parquet")
    expected = np.stack([X[:, 0], [1, 0, np.nan] * 2], axis=1)
    np.testing.assert_array_equal(load(tmp_path / "flags.parquet").numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 4)])
def test_parquet_with_lists_of_numbers(tmp_path, kind):
    file = tmp_path / "embeddings.parquet"
    columns = {"embedding": pa.array(X.tolist(), kind), "text": list("uvwxyz"), "label": np.arange(6)}
    pq.write_table(pa.table(columns), file, row_group_size=4)
    loaded = load_data(file)
    np.testing.assert_array_equal(loaded.inputs.numpy(), X)
    assert loaded.preprocessing == "columns embedding"
    pq.write_table(pa.table({**columns, "index": np.arange(6)}), file)
    with pytest.raises(ValueError, match=r"lists of numbers in embedding and single .* in index\. .*key='embedding'"):
        load(file)
    np.testing.assert_array_equal(load(file, key="embedding").numpy(), X)


def test_parquet_with_nested_and_with_several_lists(tmp_path):
    pixels, ids = RNG.integers(0, 256, (5, 3, 8, 8), dtype=np.uint8), RNG.integers(0, 30, (5, 7))
    pq.write_table(pa.table({"pixels": pa.array(pixels.tolist(), _nested(pa.uint8(), 3))}), tmp_path / "x.parquet")
    np.save(tmp_path / "x.npy", pixels)
    for options in (None, ImageOptions(mean=(0.5,))):
        table, array = (load_data(tmp_path / name, images=options) for name in ("x.parquet", "x.npy"))
        assert torch.equal(table.inputs, array.inputs)
    columns = {"input_ids": ids.tolist(), "attention_mask": (ids > 3).astype(int).tolist(), "labels": [[1]] * 5}
    pq.write_table(pa.table(columns), tmp_path / "tokens.parquet")
    tokens = load(tmp_path / "tokens.parquet")
    assert list(tokens) == ["input_ids", "attention_mask"]
    np.testing.assert_array_equal(tokens["input_ids"].numpy(), ids)


def _nested(kind, depth):
    return kind if depth == 0 else pa.list_(_nested(kind, depth - 1))


def test_lists_that_do_not_fit_together_are_refused(tmp_path):
    for cells, message in (
        ([[1.0, 2.0], [3.0]], "column 'v' of .*v.parquet has lists of unequal lengths, 2, 1, .*Pad or cut"),
        ([[[1.0], [2.0]], [[3.0, 4.0], [5.0]]], "lists of unequal lengths, 1, 2"),
        ([[1.0, 2.0], None], "column 'v' of .*v.parquet has 1 empty cell"),
    ):
        pq.write_table(pa.table({"v": cells}), tmp_path / "v.parquet")
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "v.parquet")


@pytest.mark.parametrize(("modes", "channels"), [(["L", "1", "LA"], 1), (["L", "P"], 3), (["RGBA"], 3)])
def test_channels_are_those_of_all_images(tmp_path, modes, channels):
    gray = np.array([[0, 255, 255], [255, 0, 0]], np.uint8)
    for index, mode in enumerate(modes):
        image = Image.fromarray(gray).convert("RGB").convert(mode)
        # A palette with transparency, about which Pillow warns.
        image.save(tmp_path / f"{index}.png", **({"transparency": b"\x00\x80\xff"} if mode == "P" else {}))
    (tmp_path / "._0.png").write_bytes(b"what macOS leaves on other disks")
    (tmp_path / ".thumbnails").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / ".thumbnails" / "0.png")
    (tmp_path / "folder.png").mkdir()
    images = load(tmp_path)
    assert len(images) == len(modes)
    for image in images:
        np.testing.assert_array_equal(image.numpy(), np.stack([gray / 255] * channels))


def test_a_folder_of_images(tmp_path):
    for index, mode in enumerate(("RGB", "RGB", "L")):
        (tmp_path / f"class{index % 2}").mkdir(exist_ok=True)
        picture(index, mode=mode).save(tmp_path / f"class{index % 2}" / f"{index}.png")
    everything = load_data(tmp_path).preprocessing
    picture(3).save(tmp_path / "class1" / "3.gif")
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "README").write_text("not an image")
    assert load_data(tmp_path).preprocessing == f"{everything}, 3 files left out (.gif, .txt)"
    data = load(tmp_path)
    assert isinstance(data, ImageList)
    assert data.sources == [tmp_path / name for name in ("class0/0.png", "class0/2.png", "class1/1.png")]
    assert data.describe(1) == str(tmp_path / "class0" / "2.png")
    assert len(data) == 3
    assert data[0].shape == data[1].shape == (3, 6, 8)  # class0/2.png is gray, but the first image is not
    resized = load(tmp_path, images=ImageOptions(size=4, mean=(0.5, 0.4, 0.3), std=(0.2,)))
    plain = load(tmp_path, images=ImageOptions(size=4))
    expected = (plain[0] - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / 0.2
    torch.testing.assert_close(resized[0], expected)
    (tmp_path / "a").mkdir()
    picture(3, mode="L").save(tmp_path / "a" / "gray.png")
    with pytest.raises(ValueError, match="mean= has 3 values, the images have 1 channels"):
        load(tmp_path / "a", images=ImageOptions(mean=(0.5, 0.4, 0.3)))[0]
    # Images of unequal shape: no straight line joins them, and the error comes before any forward pass.
    picture(4, size=(5, 5)).save(tmp_path / "a" / "small.png")
    with pytest.raises(ValueError, match=r"unequal shapes, \(3, 5, 5\) and \(3, 6, 8\).*resize images to one size"):
        effdeg.measure(lambda x: pytest.fail("ran"), load(tmp_path))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent.npy does not exist"):
        load(tmp_path / "absent.npy")
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(ValueError, match=r"suffix '.csv'; supported are .npy, .npz, .pt"):
        load(tmp_path / "data.csv")
    for suffix in (".npy", ".npz", ".pt", ".safetensors", ".parquet"):
        (tmp_path / f"broken{suffix}").write_bytes(b"nonsense")
        with pytest.raises(ValueError, match=rf"broken{suffix} cannot be read as {suffix}"):
            load(tmp_path / f"broken{suffix}")
    (tmp_path / "pictures").mkdir()
    with pytest.raises(ValueError, match="holds no images"):
        load(tmp_path / "pictures")
    (tmp_path / "pictures" / "a.gif").touch()
    with pytest.raises(ValueError, match=r"holds no images \(.*\); it holds \.gif\."):
        load(tmp_path / "pictures")
    (tmp_path / "pictures" / "a.png").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"a.png cannot be read as an image"):
        load(tmp_path / "pictures")
    pq.write_table(pa.table({"img": pa.array([], pa.binary())}), tmp_path / "zero.parquet")
    with pytest.raises(ValueError, match=r"zero.parquet holds no examples: it has no rows"):
        load(tmp_path / "zero.parquet")
    pq.write_table(pa.table({"img": pa.array([b"nonsense", None], pa.binary())}), tmp_path / "bad.parquet")
    with pytest.raises(ValueError, match=r"image 0 of .*bad.parquet cannot be read as an image: Pillow does") as raised:
        load(tmp_path / "bad.parquet")
    assert "BytesIO" not in str(raised.value)
    pq.write_table(pa.table({"img": pa.array([png(picture(0)), None], pa.binary())}), tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"image 1 of .*empty.parquet is missing"):
        load(tmp_path / "empty.parquet")[1]
    np.savez(tmp_path / "words.npz", x=X, names=np.array(list("abcdef")))
    with pytest.raises(ValueError, match=r"holds an array of <U1 under 'names'; choose the examples with key="):
        load(tmp_path / "words.npz")
    torch.save({"seed": 3}, tmp_path / "labels.pt")
    with pytest.raises(ValueError, match=r"holds a value of type int under 'seed'; choose"):
        load(tmp_path / "labels.pt")
    np.savez(tmp_path / "y.npz", y=np.arange(3))
    with pytest.raises(ValueError, match=r"y.npz holds no examples: it has y"):
        load(tmp_path / "y.npz")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", a=np.array([{"a": 1}], dtype=object))
    for name in ("objects.npy", "objects.npz", "broken.npy"):
        with pytest.raises(ValueError, match=r"cannot be read as .np\w: it is damaged, or holds pickled") as raised:
            load(tmp_path / name)
        assert not {"unsafely", "allow_pickle"} & set(re.findall(r"\w+", str(raised.value)))
    np.save(tmp_path / "array.npy", X)
    np.testing.assert_array_equal(load((tmp_path / "array.npy").rename(tmp_path / "array.npz")).numpy(), X)
    with pytest.raises(ValueError, match=r"key='a' is for files with several .*pictures is a folder of images"):
        load(tmp_path / "pictures", key="a")
    torch.save(X, tmp_path / "numpy.pt")
    with pytest.raises(ValueError, match=r"pickled numpy.*torch.save\(torch.from_numpy\(examples\), file\)"):
        load(tmp_path / "numpy.pt")
    np.savez(tmp_path / "some.npz", a=X, b=X)
    with pytest.raises(ValueError, match="has no array 'c'; it has a, b"):
        load(tmp_path / "some.npz", key="c")


def test_labels_next_to_the_examples(tmp_path):
    x, y = np.zeros((3, 4), np.float32), np.array([2, 0, 1], np.uint8)
    np.savez(tmp_path / "a.npz", images=x, labels=y)
    torch.save((torch.from_numpy(x), torch.from_numpy(y)), tmp_path / "b.pt")
    torch.save({"x": torch.from_numpy(x), "target": torch.from_numpy(y)}, tmp_path / "c.pt")
    for name in ("a.npz", "b.pt", "c.pt"):
        assert load_labels(tmp_path / name).tolist() == [2, 0, 1]  # class ids, not scaled as bytes of images are
    np.save(tmp_path / "d.npy", x)
    assert load_labels(tmp_path / "d.npy") is None
    assert load_labels(tmp_path) is None
    np.savez(tmp_path / "e.npz", x=x, y=y, target=y)
    with pytest.raises(ValueError, match=r"e\.npz has several kinds of labels, y, target"):
        load_labels(tmp_path / "e.npz")


def test_what_a_tokenizer_returned_is_saved_as_a_dict(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokens = transformers.BatchEncoding({"input_ids": torch.ones(4, 3).long(), "attention_mask": torch.ones(4, 3)})
    torch.save(tokens, tmp_path / "tokens.pt")
    with pytest.raises(ValueError, match=r"pickled transformers\S*BatchEncoding.* torch.save\(dict\(examples\),"):
        load(tmp_path / "tokens.pt")
    torch.save(dict(tokens), tmp_path / "tokens.pt")
    assert torch.equal(load(tmp_path / "tokens.pt")["input_ids"], tokens["input_ids"])
