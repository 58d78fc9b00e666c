"""Training: rows and settings in, trained trees and their history out.

A model averages the scores of its members, each an ensemble of trees. `MemberData` is what a member learns from,
`state.MemberState` is the member between two epochs, `TrainedMember` is the result; `softwood.model.ModelMember` is the
part of it that a model keeps.

`hyperparameters` declares what estimators can be told, `config` has the settings of the trainer, `samples` the classes
that come in and go out, `losses` what is minimised; `loop` goes through the epochs, `checkpoint` writes their state to
a file, `progress` shows it.
"""

from softwood.model.parts import BatchNorm, Trees
from softwood.training.config import TrainingConfig
from softwood.training.loop import fit_members
from softwood.training.losses import Loss
from softwood.training.samples import EpochRecord, MemberData, Samples, TrainedMember

Member = MemberData  # the name that it had first

__all__ = [
    "BatchNorm",
    "EpochRecord",
    "Loss",
    "Member",
    "MemberData",
    "Samples",
    "TrainedMember",
    "TrainingConfig",
    "Trees",
    "fit_members",
]
