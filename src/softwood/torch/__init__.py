"""The tree ensemble as a PyTorch layer.

`TreeEnsemble` is an `nn.Module` that trains with the rest of a network; `tree_ensemble` is the function behind it. On
the CPU both run softwood's native kernels, which compute only what each sample reaches; elsewhere, and where PyTorch
needs to see inside (ONNX export, second derivatives), the same function in plain PyTorch operations. `from_model` and
`to_model` carry the weights of a fitted model to a module and back.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("softwood.torch needs PyTorch, which is not installed: pip install 'softwood[torch]'") from error

from softwood.torch.fitted import FittedModel, from_model, to_model
from softwood.torch.functional import tree_ensemble
from softwood.torch.layer import TreeEnsemble

__all__ = ["FittedModel", "TreeEnsemble", "from_model", "to_model", "tree_ensemble"]
