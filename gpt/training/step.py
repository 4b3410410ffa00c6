"""One update of the weights."""

from typing import Any

import torch

from gpt.config import Config
from gpt.device import autocast, compile_model, derive_seed, select_precision
from gpt.model.transformer import GPT, cross_entropy
from gpt.text.batches import batch
from gpt.text.vocabulary import Ids
from gpt.training.optimizer import learning_rate, make_optimizer


class TrainStep:
    """Calling it with a step draws that step's batch and updates the model once.

    The batch and the dropout masks are pure functions of (seed, step), so a step repeats exactly,
    whatever ran before it; `state_dict` holds all that one step leaves to the next.
    """

    def __init__(self, model: GPT, ids: Ids, config: Config, device: torch.device) -> None:
        self.model, self.ids, self.config, self.device = model, ids, config, device
        self.precision = select_precision(config.train.precision, device)
        self.optimizer = make_optimizer(model, config.train)
        # float16 has few exponents: gradients are scaled up so that none is lost (arXiv:1710.03740)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == torch.float16)
        example = batch(ids, 2, config.model.T, seed=config.seed, step=0)[0].to(device)
        self.forward = compile_model(model, config.train.compile, device, example)

    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the batch's loss before the update and the gradient's norm before clipping."""
        config = self.config.train
        x, y = batch(
            self.ids, config.batch_size, self.config.model.T, seed=self.config.seed, step=step
        )
        if self.device.type == "cuda":
            x, y = (tensor.pin_memory().to(self.device, non_blocking=True) for tensor in (x, y))
        torch.manual_seed(derive_seed(self.config.seed, "dropout", step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for x_part, y_part in zip(
            x.chunk(config.accumulation), y.chunk(config.accumulation), strict=True
        ):
            with autocast(self.device, self.precision):
                logits = self.forward(x_part.to(self.device))
            loss = cross_entropy(logits, y_part.to(self.device)) / config.accumulation
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), config.grad_clip or float("inf")
        )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total, norm

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's averages and, in float16, the gradient's scale."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
