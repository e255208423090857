"""ViT-S on Tiny-ImageNet with the paper's original ImageNet recipe: plain, ED, mixup and CutMix."""

from effdeg_lab.recipes._imagenet import ORIGINAL, make_tiny_recipe, shrink

RECIPE = make_tiny_recipe(
    name="tiny-imagenet-vit",
    title="ViT-S on Tiny-ImageNet, the original recipe",
    expects="By the paper's ImageNet results, ED is about a point ahead of plain training.",
    settings=shrink(ORIGINAL),
)
