"""Which of my fine-tuned text encoders? MiniLMs fine-tuned on RTE by the same random search as on MRPC."""

from dataclasses import replace

from effdeg_lab.recipes.picking_mrpc import RECIPE as MRPC
from effdeg_lab.text.finetune import FineTuning

RECIPE = replace(
    MRPC,
    name="picking-rte",
    title="Picking the best of several fine-tuned text encoders without labels, on RTE",
    settings=FineTuning(data="rte", compile=False, observe=2000),
)
