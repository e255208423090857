"""The one table of findings: what its intervals say. Where this changes, read the page of that row again."""

import re
from pathlib import Path

EXPECTED = {
    "τ with the gap, ResNet-18s": "above zero",
    "τ, ResNet-9s": "above zero",
    "τ, ResNet-9s of one width": "above zero",
    "τ, ViT-Tinys": "not significant",
    "τ, fine-tuned DeiT-Tinys": "not significant",
    "τ, MLPs": "not significant",
    "ViT-Tiny, 300 epochs": "above zero",
    "ViT-Tiny, in the time of 300 plain epochs": "above zero",
    "ViT-Tiny, class token, 300 epochs": "no interval",
    "ResNet-9, equal time": "not significant",
    "ResNet-9, 250 labels": "above zero",
    "ResNet-9, 1,000 labels": "above zero",
    "ResNet-9, 4,000 labels": "not significant",
    "100 digits": "not significant",
    "GLUE: RTE": "not significant",
    "GLUE: MRPC": "below zero",
    "GLUE: CoLA": "not significant",
    "GLUE: RTE, mpnet": "not significant",
    "PACS, photos": "below zero",
    "PACS, under shifts": "above zero",
    "CIFAR-10, under shifts": "not significant",
    "Tiny-ImageNet, original recipe": "no interval",
    "Tiny-ImageNet, strong recipe": "no interval",
    "Procgen: Dodgeball": "not significant",
    "Procgen: StarPilot": "not significant",
    "MNIST–CIFAR, digit randomized": "no interval",
}


def test_findings_are_those_that_the_pages_describe():
    page = Path(__file__).parents[2] / "docs" / "results" / "index.md"  # compared with results/ by test_pages.py
    rows = re.findall(r"^\| \[(.+?)\].+\| ([a-z ]+) \|$", page.read_text(), re.MULTILINE)
    assert dict(rows) == EXPECTED


def test_verdicts_are_those_that_the_pages_describe(docs):
    records = docs("records")
    names = ("estimator", "digits-estimators", "cifar10-estimators", "pnn", "path-degrees", "grokking", "mnist-cifar")
    results = {name: records.find_results(name) for name in names}
    verdicts = {name: found.recipe.study.judge(found).word for name, found in results.items()}
    holding = {name for name, word in verdicts.items() if word == "holds"}
    assert holding == {"estimator", "digits-estimators", "pnn", "path-degrees", "mnist-cifar"}
    assert verdicts["cifar10-estimators"] == verdicts["grokking"] == "not decided"


def test_a_conclusion_is_that_of_the_interval(docs):
    findings = docs("findings")
    texts = {
        "+1.2 (+0.1 to +2.3)": "above zero",
        "-1 (-2…-0.5)": "below zero",
        "0.1 (-1.0 to 1.2)": "not significant",
        "+4.7": "no interval",
    }
    for text, expected in texts.items():
        assert findings.Finding("", "", text, {}, 1).conclusion == expected
