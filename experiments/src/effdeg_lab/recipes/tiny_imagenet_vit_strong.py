"""ViT-S on Tiny-ImageNet with the paper's strong ImageNet recipe: plain, ED, mixup and CutMix."""

from effdeg_lab.recipes._imagenet import STRONG, make_tiny_recipe, shrink

RECIPE = make_tiny_recipe(
    name="tiny-imagenet-vit-strong",
    title="ViT-S on Tiny-ImageNet, the strong recipe",
    expects="By the paper's ImageNet results, ED is about half a point ahead of plain training.",
    cost="2.9 min per run on an H200, 5.5 with ED",
    settings=shrink(STRONG),
)
