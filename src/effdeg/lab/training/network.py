"""The network of a run, tried on two examples before anything is begun."""

import torch
from torch import Tensor, nn

from effdeg._models.layers import find_layer
from effdeg.lab import models
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.settings import Training


def made_network(settings: Training, examples: DeviceExamples, device: torch.device) -> nn.Module:
    """Make the network with its first weights, which the seed decides.

    Args:
        settings: The settings of the run.
        examples: Its examples, whose shape and classes the network is for.
        device: Where it is to be.

    Returns:
        The network.
    """
    torch.manual_seed(settings.seed)
    return models.make(settings.model, shape=examples.shape, classes=examples.classes).to(device)


@torch.no_grad()
def check_network(network: nn.Module, settings: Training, examples: DeviceExamples) -> None:
    """Raise unless the network gives one output per class for every example, and has the layer that is named."""
    if settings.at is not None:
        find_layer(network, settings.at)
    inputs = examples.normalized(examples.train.inputs[:2])
    training = network.training
    outputs = network.eval()(inputs)
    network.train(training)
    if not isinstance(outputs, Tensor) or outputs.shape != (2, examples.classes):
        given = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"model={settings.model} gives {given} for 2 examples of {settings.data}, which has {examples.classes} "
            f"classes: shape (2, {examples.classes}) was expected. A callable may take the keyword classes or "
            "num_classes, and channels."
        )
