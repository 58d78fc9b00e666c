from collections.abc import Callable
from typing import Annotated, Any, overload

import numpy
from numpy.typing import NDArray


class TapeFloat32:
    def __init__(self) -> None: ...

    @property
    def n_bytes(self) -> int: ...

@overload
def forward(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], split_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], leaf_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], split_bias: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: int, gamma: float, sum_trees: bool, output: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], tape: TapeFloat32 | None, n_threads: int) -> None: ...

@overload
def forward(x: Annotated[NDArray[numpy.float64], dict(shape=(None, None), device='cpu', writable=False)], split_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], leaf_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], split_bias: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: int, gamma: float, sum_trees: bool, output: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')], tape: TapeFloat64 | None, n_threads: int) -> None: ...

@overload
def backward(grad_output: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], split_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], leaf_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], split_bias: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: int, gamma: float, sum_trees: bool, tape: TapeFloat32 | None, grad_x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None, grad_split_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')] | None, grad_leaf_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')] | None, grad_split_bias: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None, split_marked: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')] | None, leaf_marked: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')] | None, n_threads: int) -> None: ...

@overload
def backward(grad_output: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu', writable=False)], x: Annotated[NDArray[numpy.float64], dict(shape=(None, None), device='cpu', writable=False)], split_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], leaf_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], split_bias: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: int, gamma: float, sum_trees: bool, tape: TapeFloat64 | None, grad_x: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')] | None, grad_split_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu')] | None, grad_leaf_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu')] | None, grad_split_bias: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')] | None, split_marked: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')] | None, leaf_marked: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')] | None, n_threads: int) -> None: ...

@overload
def reachability(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], split_weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], split_bias: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: int, gamma: float, leaves: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], internal_nodes: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], fractional_nodes: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], n_threads: int) -> None: ...

@overload
def reachability(x: Annotated[NDArray[numpy.float64], dict(shape=(None, None), device='cpu', writable=False)], split_weight: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], split_bias: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, activation: int, gamma: float, leaves: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], internal_nodes: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], fractional_nodes: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], n_threads: int) -> None: ...

@overload
def clear_rows(marked: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu')], rows_a: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')], rows_b: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu')] | None) -> None: ...

@overload
def clear_rows(marked: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu')], rows_a: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')], rows_b: Annotated[NDArray[numpy.float64], dict(order='C', device='cpu')] | None) -> None: ...

@overload
def first_non_finite(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)]) -> int: ...

@overload
def first_non_finite(x: Annotated[NDArray[numpy.float64], dict(shape=(None, None), device='cpu', writable=False)]) -> int: ...

class TapeFloat64:
    def __init__(self) -> None: ...

    @property
    def n_bytes(self) -> int: ...

def instruction_set() -> str: ...

def num_threads() -> int: ...

def set_num_threads(n_threads: int) -> None: ...

class _Member:
    def __init__(
        self,
        settings: dict[str, Any],
        arrays: dict[str, Any],
        train: dict[str, Any],
        validation: dict[str, Any] | None,
        custom_loss: Callable[..., tuple[NDArray[Any], float]] | None,
    ) -> None: ...
    @property
    def gamma(self) -> float: ...
    schedule_step: int
    adam_step: int
    @staticmethod
    def run_epoch(
        members: list[Any], epoch: int, seconds_left: float, n_threads: int
    ) -> list[tuple[int, int, float, float, float, float, float, float]]: ...

class MemberFloat32(_Member): ...
class MemberFloat64(_Member): ...

def column_statistics(
    x: NDArray[Any],
    rows: NDArray[numpy.int64] | None,
    mean: NDArray[numpy.float64],
    variance: NDArray[numpy.float64],
    n_threads: int,
) -> None: ...
def shuffled_order(seed: int, epoch: int, order: NDArray[numpy.int64]) -> None: ...
