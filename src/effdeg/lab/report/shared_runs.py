"""Which experiments were run, and which merely share runs with one that was."""

from collections import Counter
from collections.abc import Sequence

from effdeg._utils.checks import pluralize
from effdeg.lab.report.result import RecipeResult
from effdeg.lab.report.wording import listed


def run_and_not(results: Sequence[RecipeResult]) -> tuple[list[RecipeResult], list[tuple[RecipeResult, str]]]:
    """Separate experiments that have a run of their own from those that have none.

    Args:
        results: The results; a run belongs to the first that has it.

    Returns:
        The experiments that were run; the others, each with the words for what it shares with them, if anything.
    """
    owners: dict[str, str] = {}
    run, others = [], []
    for result in results:
        folders = [record.folder.name for _, record in result.runs]
        shared = Counter(owners[folder] for folder in folders if folder in owners)
        if shared.total() < len(folders):
            run.append(result)
        else:
            words = [f"{pluralize(count, 'run')} with {name}" for name, count in shared.items()]
            others.append((result, f"shares {listed(words)}" if words else ""))
        for folder in folders:
            owners.setdefault(folder, result.recipe.name)
    return run, others
