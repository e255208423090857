"""The one table of findings: what its intervals say. Where this changes, read the page of that row again."""

EXPECTED = {
    "above zero": {
        *("τ with the gap, ResNet-18s", "τ, ResNet-9s", "τ, ResNet-9s of one width"),
        *("ViT-Tiny, 300 epochs", "ViT-Tiny, in the time of 300 plain epochs", "ResNet-9, 250 labels"),
        *("ResNet-9, 1,000 labels", "PACS, under shifts"),
    },
    "not significant": {
        *("τ, ViT-Tinys", "τ, fine-tuned DeiT-Tinys", "τ, MLPs", "ResNet-9, equal time"),
        *("ResNet-9, 4,000 labels", "100 digits", "GLUE: RTE", "GLUE: CoLA", "GLUE: RTE, mpnet"),
        *("CIFAR-10, under shifts", "Procgen: Dodgeball", "Procgen: StarPilot"),
    },
    "no interval": {
        *("ViT-Tiny, class token, 300 epochs", "Tiny-ImageNet, original recipe"),
        *("Tiny-ImageNet, strong recipe", "MNIST–CIFAR, digit randomized"),
    },
    "below zero": {"GLUE: MRPC", "PACS, photos"},
}


def test_findings_are_those_that_the_pages_describe(docs):
    found = {each.question: each.conclusion for each in docs("findings").list_findings()}
    assert found == {question: conclusion for conclusion, those in EXPECTED.items() for question in those}


def test_verdicts_are_those_that_the_pages_describe(docs):
    records = docs("records")
    names = ("estimator", "digits-estimators", "cifar10-estimators", "pnn", "path-degrees", "grokking", "mnist-cifar")
    results = {name: records.find_results(name) for name in names}
    verdicts = {name: found.recipe.study.judge(found).word for name, found in results.items()}
    holding = {name for name, word in verdicts.items() if word == "holds"}
    assert holding == {"estimator", "digits-estimators", "pnn", "path-degrees", "mnist-cifar"}
    assert verdicts["cifar10-estimators"] == verdicts["grokking"] == "not decided"
