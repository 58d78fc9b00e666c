"""Training: members in (what each learns from), trained trees and their history out.

`config` has the settings, `samples` the classes that come in and go out, `losses` what is minimised; `loop` goes
through the epochs, `state` holds one member between two of them, `checkpoint` puts that on disk, `progress` shows it.
"""

from softwood.model.parts import BatchNorm, Trees
from softwood.training.config import TrainingConfig
from softwood.training.loop import fit_members
from softwood.training.losses import Loss
from softwood.training.samples import EpochRecord, Member, Samples, TrainedMember

__all__ = [
    "BatchNorm",
    "EpochRecord",
    "Loss",
    "Member",
    "Samples",
    "TrainedMember",
    "TrainingConfig",
    "Trees",
    "fit_members",
]
