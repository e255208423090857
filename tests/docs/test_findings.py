"""The table of findings, and the verdicts that pages tell. Where these change, read the page of that row again."""

import re
from collections import Counter
from pathlib import Path

INDEX = Path(__file__).parents[2] / "docs" / "results" / "index.md"  # test_pages.py compares its table with results/


def test_the_intervals_below_the_table_are_those_of_the_table():
    page = INDEX.read_text()
    rows = re.findall(r"^\| \[.+?\]\((.+?)\.md\).+\| ([a-z ]+) \|$", page, re.MULTILINE)
    counts = Counter(conclusion for page, conclusion in rows if page != "ordering-models")
    assert (counts["above zero"], counts["below zero"]) == (6, 2)
    assert re.search(r"ED has six intervals above zero \([^)]+\) and two below", page)


def test_verdicts_are_those_that_the_pages_describe(docs):
    records = docs("records")
    names = ("estimator", "digits-estimators", "cifar10-estimators", "pnn", "path-degrees", "grokking", "mnist-cifar")
    results = {name: records.find_results(name) for name in names}
    verdicts = {name: found.recipe.study.judge(found).word for name, found in results.items()}
    holding = {name for name, word in verdicts.items() if word == "holds"}
    assert holding == {"estimator", "digits-estimators", "pnn", "path-degrees", "mnist-cifar"}
    assert verdicts["cifar10-estimators"] == verdicts["grokking"] == "not decided"
