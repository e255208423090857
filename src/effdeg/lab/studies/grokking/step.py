"""One training step: on a GPU compiled, and the whole of it in one CUDA graph; on a CPU as it is written."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effdeg._utils.device import send
from effdeg.lab.studies.grokking.equations import Equations
from effdeg.lab.studies.grokking.settings import Grokking
from effdeg.lab.training.capture import CapturedStep

# Power et al.'s, as are the two numbers of Adam.
_WARM_UP = 10
_BETAS = (0.9, 0.98)

State = dict[str, Any]


class GrokkingStep:
    """Trains a network on batches of equations, in an order that the seed decides.

    In float32 throughout, without TF32: a step of this size is bound by its launches, and without weight decay the
    loss falls so low that digits matter.

    Attributes:
        step: How many steps are done.
    """

    def __init__(self, model: nn.Module, train: Equations, settings: Grokking) -> None:
        self._model, self._train, self._settings = model, train, settings
        device = train.answers.device
        on_gpu = device.type == "cuda"
        # A captured step reads these from their place, so they are written to, never replaced.
        self._rate = torch.zeros((), device=device)
        self._rows = torch.arange(settings.batch_size, device=device)
        # What does not fill a batch, other equations in every epoch, is left out of it.
        self._per_epoch = len(train) // settings.batch_size
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self._rate,
            betas=_BETAS,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        self._loss: Callable[[Tensor, Tensor], Tensor] = self._plain_loss
        if on_gpu:
            self._loss = torch.compile(self._plain_loss, fullgraph=True, dynamic=False)
        self.step = 0
        self._order: Tensor | None = None
        fresh = {name: value.clone() for name, value in model.state_dict().items()}
        # A first step compiles, before anything is captured, and makes the optimizer's state, so that it can be put
        # back in its place as the weights can.
        with warnings.catch_warnings():
            # Advice to compute in TF32, and other asides of the compiler.
            warnings.filterwarnings("ignore", module="torch._inductor")
            self._train_batch()
        self._run: Callable[[], None] = CapturedStep(model, self._train_batch) if on_gpu else self._train_batch
        self.restore({"model": fresh, "optimizer": {}, "step": 0})

    def __call__(self) -> None:
        """Train on the next batch."""
        number = self.step % self._per_epoch
        if number == 0 or self._order is None:
            self._order = self._shuffled(self.step // self._per_epoch)
        self._rate.fill_(self._settings.lr * min(1.0, (self.step + 1) / _WARM_UP))
        self._rows.copy_(self._order[number * len(self._rows) : (number + 1) * len(self._rows)])
        self._run()
        self.step += 1

    def state(self) -> State:
        """Return everything that moves: weights, the optimizer's state, and how far training is."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict()["state"],
            "step": self.step,
        }

    def restore(self, state: State) -> None:
        """Put everything back, into the memory where it is: a graph has captured it.

        Args:
            state: What :meth:`state` gave; an optimizer's state that is empty begins anew.
        """
        self._model.load_state_dict(state["model"])
        for parameter, values in self._optimizer.state_dict()["state"].items():
            for name, value in values.items():
                kept = state["optimizer"].get(parameter, {}).get(name)
                value.zero_() if kept is None else value.copy_(kept)
        self.step, self._order = state["step"], None

    def _shuffled(self, epoch: int) -> Tensor:
        """Draw the order of an epoch, from seed and epoch alone, so that a resumed run needs no memory of it."""
        generator = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + epoch)
        return send(torch.randperm(len(self._train), generator=generator), self._rate.device)

    def _train_batch(self) -> None:
        self._model.zero_grad(set_to_none=True)
        loss = self._loss(self._train.tokens[self._rows], self._train.answers[self._rows])
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _plain_loss(self, tokens: Tensor, answers: Tensor) -> Tensor:
        outputs: Tensor = self._model(tokens)
        return cross_entropy(outputs.double() if self._settings.softmax == "float64" else outputs, answers)
