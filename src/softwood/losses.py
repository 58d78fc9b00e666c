"""What the estimators and `softwood.training` minimise: the public name of `softwood.training.losses`."""

from softwood.training.losses import LOSS_NAMES, Loss

__all__ = ["LOSS_NAMES", "Loss"]
