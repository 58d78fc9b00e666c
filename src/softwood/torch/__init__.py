"""The tree ensemble as a PyTorch layer.

`TreeEnsemble` is an `nn.Module` that trains with the rest of a network; `tree_ensemble` is the function behind it, and
`GammaSchedule` narrows the soft band during training. On the CPU softwood's native kernels run, which compute
only what each sample reaches; elsewhere, and where PyTorch needs to see inside (ONNX export, second derivatives), the
same function in plain PyTorch operations. `from_model` and `to_model` carry the weights of a fitted model to a module
and back; they, and the estimators with scikit-learn, are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("softwood.torch needs PyTorch, which is not installed: pip install 'softwood[torch]'") from error

from softwood.torch.functional import tree_ensemble
from softwood.torch.layer import TreeEnsemble
from softwood.torch.schedule import GammaSchedule

if TYPE_CHECKING:
    from softwood.torch.fitted import FittedModel, from_model, to_model

__all__ = ["FittedModel", "GammaSchedule", "TreeEnsemble", "from_model", "to_model", "tree_ensemble"]

_OF_FITTED_MODELS = frozenset({"FittedModel", "from_model", "to_model"})


def __getattr__(name: str) -> Any:
    if name not in _OF_FITTED_MODELS:
        raise AttributeError(f"module 'softwood.torch' has no attribute {name!r}")
    from softwood.torch import fitted

    return getattr(fitted, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_FITTED_MODELS})
