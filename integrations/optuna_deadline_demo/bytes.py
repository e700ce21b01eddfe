"""A language model of bytes: a small GPT on the sources of Python's standard library.

Nothing is downloaded: the sources lie where Python is installed. The value is the number of bits
that the model needs for a byte of files that it has not seen; 8 bits without any knowledge. The
sizes fit a slot of a CPU (minutes) or, where CUDA is available, a large GPU (half an hour).
"""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from optuna_deadline_demo.training import Objective, Rows

MONITOR = "bits"
MAX_EPOCHS = 40


class Size(NamedTuple):
    """The sizes of models and epochs."""

    widths: tuple[int, ...]
    depths: tuple[int, int]
    heads: tuple[int, ...]
    batches: tuple[int, ...]
    context: int
    windows: int  #: of an epoch
    unseen: int  #: windows to validate on


_CPU = Size((32, 48, 64, 96), (1, 4), (2, 4), (8, 16, 32), 64, 512, 256)
_GPU = Size((256, 384, 512, 768), (4, 12), (4, 8, 16), (32, 64, 128), 256, 8192, 1024)
_HELD_OUT = 10  # every tenth file is not trained on
_TRAINING_BYTES, _UNSEEN_BYTES = 1 << 22, 1 << 19


def size() -> Size:
    """The sizes for this machine."""
    return _GPU if torch.cuda.is_available() else _CPU


def corpus() -> tuple[Tensor, Tensor]:
    """The bytes to train on and those to validate on, in a fixed order.

    The library's modules and packages, without tests and the tables of encodings, which repeat
    each other.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(
        file
        for file in (*library.glob("*.py"), *library.glob("*/*.py"))
        if file.parent.name not in ("site-packages", "test", "tests", "encodings")
    )
    parts: tuple[bytearray, bytearray] = (bytearray(), bytearray())
    for index, file in enumerate(files):
        parts[index % _HELD_OUT == 0].extend(file.read_bytes())
    seen, unseen = parts[0][:_TRAINING_BYTES], parts[1][:_UNSEEN_BYTES]
    return torch.frombuffer(seen, dtype=torch.uint8), torch.frombuffer(unseen, dtype=torch.uint8)


SEEN, UNSEEN = corpus()  # read once on a host: each trial's process is forked from this one


def windows(batch: int) -> Rows:
    """Windows of one byte more than the context; an epoch trains on a random part of them."""
    length, unseen = size().context + 1, size().unseen
    held_out = UNSEEN.unfold(0, length, length)
    spread = held_out[:: max(1, len(held_out) // unseen)][:unseen]  # over all files
    return Rows(TensorDataset(SEEN.unfold(0, length, length)), TensorDataset(spread), batch, 64)


class GPT(L.LightningModule):
    """A decoder of bytes with learned positions."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self.parameters_ = parameters
        width, heads = parameters["width"], parameters["heads"]
        self.embedding = nn.Embedding(256, width)
        self.positions = nn.Parameter(0.02 * torch.randn(size().context, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, parameters["dropout"], F.gelu,
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, parameters["depth"], enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        self.register_buffer(
            "mask",
            nn.Transformer.generate_square_subsequent_mask(size().context),
            persistent=False,
        )

    def _nats(self, batch: list[Tensor]) -> Tensor:
        """The cross-entropy of each byte, given those before it in its window."""
        windows = batch[0].long()
        inputs = self.embedding(windows[:, :-1]) + self.positions
        found = self.head(self.norm(self.layers(inputs, mask=self.mask, is_causal=True)))
        return F.cross_entropy(found.flatten(0, 1), windows[:, 1:].flatten())

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """The loss of one batch."""
        return self._nats(batch)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Log the bits of a byte as ``bits``."""
        self.log(MONITOR, self._nats(batch) / math.log(2))

    def configure_optimizers(self) -> Any:
        """AdamW; warm-up and decay over all steps of a whole training."""
        given = self.parameters_
        optimizer = torch.optim.AdamW(
            self.parameters(),
            given["lr"],
            betas=(given["beta1"], given["beta2"]),
            weight_decay=given["weight_decay"],
        )
        steps = MAX_EPOCHS * _batches(given)
        warm_up = max(1.0, given["warm_up"] * steps)

        def factor(step: int) -> float:
            left = max(0.0, (steps - step) / (steps - warm_up))
            decay = {
                "constant": 1.0,
                "linear": left,
                "cosine": 0.5 - 0.5 * math.cos(math.pi * min(1.0, left)),
            }
            return float(min((step + 1) / warm_up, decay[given["schedule"]]))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def _batches(parameters: dict[str, Any]) -> int:
    return size().windows // int(parameters["batch"])


def suggest(trial: Any) -> dict[str, Any]:
    """Choose the parameters of a trial."""
    sizes = size()
    return {
        "width": trial.suggest_categorical("width", sizes.widths),
        "depth": trial.suggest_int("depth", *sizes.depths),
        "heads": trial.suggest_categorical("heads", sizes.heads),
        "batch": trial.suggest_categorical("batch", sizes.batches),
        "lr": trial.suggest_float("lr", 1e-4, 3e-2, log=True),
        "warm_up": trial.suggest_float("warm_up", 0.0, 0.2),
        "schedule": trial.suggest_categorical("schedule", ("constant", "linear", "cosine")),
        "dropout": trial.suggest_float("dropout", 0.0, 0.3),
        "weight_decay": trial.suggest_float("weight_decay", 1e-4, 1.0, log=True),
        "beta1": trial.suggest_float("beta1", 0.8, 0.95),
        "beta2": trial.suggest_float("beta2", 0.9, 0.999),
    }


def options(parameters: dict[str, Any]) -> dict[str, Any]:
    """An epoch has as many windows with each batch size."""
    return {"limit_train_batches": _batches(parameters), "gradient_clip_val": 1.0}


objective = Objective(
    MONITOR, MAX_EPOCHS, suggest, GPT, lambda given: windows(given["batch"]), options
)
