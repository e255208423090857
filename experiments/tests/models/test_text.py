import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from effdeg_lab.data.sentences import load_task
from effdeg_lab.models.made_up import make_text_model
from effdeg_lab.models.text import TextClassifier, check_folder, load_classifier, tokenize

transformers = pytest.importorskip("transformers")

RTE = 'index\tsentence1\tsentence2\tlabel\n0\tIt "rains.\tIt is wet.\tentailment\n1\tA cat.\tA dog.\tnot_entailment\n'
COLA = "gj04\t1\t\tThe cat sat.\ngj04\t0\t*\tCat the sat.\n"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tHe said so .\tSo he said .\n0\t7\t8\tNo .\tYes .\n"


def write(folder, name, text, dev=None):
    (folder / name).mkdir(parents=True)
    (folder / name / "train.tsv").write_text(text, encoding="utf-8")
    (folder / name / "dev.tsv").write_text(text if dev is None else dev, encoding="utf-8")


def test_glue_files_are_read_as_they_are(tmp_path):
    write(tmp_path / "glue", "RTE", RTE)
    write(tmp_path, "CoLA", COLA)
    write(tmp_path, "MRPC", MRPC)
    rte, cola, mrpc = (load_task(name, tmp_path) for name in ("rte", "cola", "mrpc"))
    assert rte.train.first == ('It "rains.', "A cat.")  # quotation marks are not the file's
    assert rte.train.second == ("It is wet.", "A dog.")
    assert rte.train.labels == (0, 1)
    assert (cola.train.first, cola.train.second, cola.train.labels) == (("The cat sat.", "Cat the sat."), None, (1, 0))
    assert mrpc.dev.labels == (1, 0)
    assert [task.metric for task in (rte, cola, mrpc)] == ["accuracy", "matthews", "accuracy"]


def test_the_hubs_files_are_the_same(tmp_path):
    write(tmp_path / "tsv", "RTE", RTE)
    (tmp_path / "hub" / "rte").mkdir(parents=True)
    columns = {"sentence1": ['It "rains.', "A cat."], "sentence2": ["It is wet.", "A dog."], "label": [0, 1]}
    for split in ("train", "validation"):
        pq.write_table(pa.table(columns), tmp_path / "hub" / "rte" / f"{split}-00000-of-00001.parquet")
    assert load_task("rte", tmp_path / "hub") == load_task("rte", tmp_path / "tsv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RTE.replace("A cat.", " "), "example 1 is empty"),
        (RTE.replace("not_entailment", "entailment"), "all labels are 0"),
        (RTE.replace("not_entailment", "maybe"), "the label 'maybe' is not one of entailment, not_entailment"),
        (RTE.replace("sentence2", "hypothesis"), "has no column 'sentence2'"),
        (RTE.replace("\tA dog.", ""), "row 2 has 3 columns; expected 4"),
        (RTE.splitlines()[0] + "\n", "has no examples"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    write(tmp_path, "RTE", RTE, dev=text)
    with pytest.raises(ValueError, match=message):
        load_task("rte", tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0.0, 1.0]}, "the label 0.0 is not one of 0 to 1"),
        ({"label": [-1, -1]}, "the label -1 is not one of 0 to 1. The test sets of GLUE have -1"),
        ({"sentence2": ["It is wet.", None]}, "the sentence of example 1 is empty or not a text"),
    ],
)
def test_bad_columns_of_the_hubs_files_are_named(tmp_path, columns, message):
    (tmp_path / "rte").mkdir()
    good = {"sentence1": ["It rains.", "A cat."], "sentence2": ["It is wet.", "A dog."], "label": [0, 1]}
    for split, table in (("train", good), ("validation", {**good, **columns})):
        pq.write_table(pa.table(table), tmp_path / "rte" / f"{split}-0.parquet")
    with pytest.raises(ValueError, match=message):
        load_task("rte", tmp_path)


def test_other_encodings_are_named(tmp_path):
    write(tmp_path, "CoLA", COLA)
    (tmp_path / "CoLA" / "dev.tsv").write_bytes(COLA.replace("cat", "caf\u00e9").encode("latin-1"))
    with pytest.raises(ValueError, match=r"dev.tsv is not UTF-8: .* byte 0xe9"):
        load_task("cola", tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'rte'"):
        load_task("rtee", tmp_path)
    with pytest.raises(ValueError, match="give --data DIR"):
        load_task("rte", None)
    with pytest.raises(FileNotFoundError, match=r"rte was not found: expected train\.tsv"):
        load_task("rte", tmp_path)


def make_tokens(length=12):
    torch.manual_seed(1)
    tokens = torch.zeros(5, 3, length, dtype=torch.int64)
    tokens[:, 0], tokens[:, 1] = torch.randint(3, 50, (5, length)), 1
    tokens[:, 2, length // 2 :] = 1
    tokens[2, 0, 7:], tokens[2, 1, 7:] = 1, 0
    return tokens


@pytest.mark.parametrize("place", ["embeddings", "sum"])
@pytest.mark.parametrize("kind", ["Bert", "MPNet", "Roberta", "Electra", "DistilBert"])
@torch.no_grad()
def test_two_halves_are_the_whole(kind, place):
    model, tokens = make_text_model(kind), make_tokens()
    if kind in {"MPNet", "Roberta", "DistilBert"}:
        tokens[:, 2] = 0
    ids, mask, types = tokens.unbind(1)
    given = {"token_type_ids": types} if kind in {"Bert", "Electra"} else {}
    expected = model(input_ids=ids, attention_mask=mask, **given).logits
    classifier = TextClassifier(model, place=place)
    torch.testing.assert_close(classifier(tokens), expected)
    hidden, _ = classifier.embed(tokens)
    normalized = hidden.mean(-1).abs().max() < 1e-5
    assert normalized == (place == "embeddings")


@pytest.fixture
def folder(tmp_path):
    model = make_text_model()
    model.save_pretrained(tmp_path / "model")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", ".", "it", "rains"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_becomes_a_classifier_and_tokens(folder, tmp_path):
    write(tmp_path, "RTE", RTE)
    task = load_task("rte", tmp_path)
    train, dev = tokenize(folder, [task.train, task.dev])
    assert train.shape == dev.shape == (2, 3, 16)  # 12 tokens at most, rounded up
    assert train[1, 0].tolist()[:9] == [2, 5, 6, 8, 3, 5, 7, 8, 3]  # [CLS] a cat . [SEP] a dog . [SEP]
    assert train[1, 2].tolist()[:9] == [0] * 5 + [1] * 4
    assert train[1, 1].sum() == 9
    torch.manual_seed(0)
    one = load_classifier(folder, classes=3)
    torch.manual_seed(0)
    same = load_classifier(folder, classes=3)
    torch.testing.assert_close(one(train), same(train))
    assert one.eval()(train).shape == (2, 3)


@pytest.mark.parametrize(
    ("removed", "message"),
    [("model.safetensors", "no weights"), ("config.json", "has no config.json"), ("tokenizer.json", "no tokenizer")],
)
def test_incomplete_folders_are_refused(folder, removed, message):
    for file in folder.glob("vocab*") if removed == "tokenizer.json" else ():
        file.unlink()
    (folder / removed).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        check_folder(folder)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ModernBert", "place=sum: the embeddings of ModernBertForSequenceClassification do not end in a LayerNorm"),
        ("FNet", "FNetForSequenceClassification cannot be run starting from its embeddings, with p"),  # it projects
    ],
)
def test_embeddings_without_a_sum_are_refused(folder, kind, message):
    make_text_model(kind).save_pretrained(folder)
    assert load_classifier(folder, classes=2, place="embeddings")(make_tokens()).shape == (5, 2)
    with pytest.raises(ValueError, match=message):
        load_classifier(folder, classes=2, place="sum")


def test_models_without_embeddings_are_refused():
    model = torch.nn.Module()
    model.base_model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no module 'embeddings'"):
        TextClassifier(model)
