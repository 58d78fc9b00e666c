"""Private calls of PyTorch: whether operations are traced or transformed, and what is kept for the backward pass.

Each has a fallback for a PyTorch without it. The fallback gives the same results, but takes longer or holds memory
longer: what cannot be known is assumed to be the case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _find(path: str, fallback: Any) -> Any:
    """Return what stands at a path below torch._C, or the fallback where there is nothing."""
    found: Any = torch._C
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            return fallback
    return found


# Without one of these three every call goes through the registered operator.
has_transforms: Callable[[], bool] = _find("_are_functorch_transforms_active", lambda: True)
count_dispatch_modes: Callable[[], int] = _find("_len_torch_dispatch_stack", lambda: 1)
get_tracing_state: Callable[[], Any] = _find("_get_tracing_state", lambda: True)

# Without it every backward pass goes through the registered operator and repeats the traversal.
is_batched: Callable[[Tensor], bool] = _find("_functorch.is_legacy_batchedtensor", lambda tensor: True)

# Without them a tape is made even if hooks ask to hold no memory, and kept as long as the graph's node.
get_saved_tensor_hooks: Callable[[bool], Any] = _find("_autograd._top_saved_tensors_default_hooks", lambda _: None)
keeps_graph: Callable[[], bool] = _find("_autograd._get_current_graph_task_keep_graph", lambda: True)

_get_interpreters: Callable[[], Any] | None = _find("_functorch.get_interpreter_stack", None)
_vmap: Any = _find("_functorch.TransformType.Vmap", None)


def is_differentiated() -> bool:
    """Return whether a transform of torch.func other than vmap is at work; without the calls for it, whether any is."""
    if torch.compiler.is_compiling() or _get_interpreters is None or _vmap is None:
        return has_transforms()
    return any(interpreter.key() != _vmap for interpreter in _get_interpreters() or ())


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return `function.apply` without what it does for torch.func: a tenth of a call of a small layer."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)
