"""Training: members in (what each learns from), trained trees and their history out.

`loop` goes through the epochs, `member_state` holds one member between two of them, `checkpoint` puts that on disk,
`progress` shows it. `members` has the classes that come in and go out.
"""

from softwood.losses import Loss
from softwood.training.loop import TrainingConfig, fit_members
from softwood.training.members import BatchNorm, EpochRecord, Member, Samples, TrainedMember, Trees

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
