"""The contestants, behind one interface: each holds one workload and computes its output and its gradients.

`forward` returns the output [n, k]; `step` runs forward and backward and returns the gradients of x, split_weight and
leaf_weight. What a rival may prepare (a layout of its own, memory to use again) it prepares when it is made.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from softwood import ops

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Workload:
    """n samples, p features, k outputs, m trees of depth d, in float32; "initial" or "trained" weights."""

    state: str
    n: int = 256
    m: int = 10
    d: int = 6
    p: int = 30
    k: int = 3
    gamma: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.state}, n {self.n}, m {self.m}, d {self.d}, p {self.p}"

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """x, split_weight, leaf_weight and the gradient of the output."""
        rng = np.random.default_rng(0)
        # Trained: t has the standard deviation 4 gamma, so one node in ten is fractional. Initial: all are.
        spread = {"trained": 4.0, "initial": 0.15}[self.state] * self.gamma / np.sqrt(self.p)
        shapes = (self.n, self.p), (self.m, 2**self.d - 1, self.p), (self.m, 2**self.d, self.k), (self.n, self.k)
        x, w, o, g = (rng.standard_normal(shape, np.float32) for shape in shapes)
        return x, w * np.float32(spread), o, g


class Rival(Protocol):
    def forward(self) -> Any: ...

    def step(self) -> tuple[Any, Any, Any]: ...


class Softwood:
    """softwood.ops. With `reuse`, gradients are written into the memory of the step before, as a training loop does."""

    def __init__(self, workload: Workload, n_threads: int = 1, reuse: bool = True) -> None:
        self.x, self.w, self.o, self.g = workload.arrays()
        self.options: dict[str, Any] = {"gamma": workload.gamma, "n_threads": n_threads}
        self.reuse = reuse
        self.gradients: ops.Gradients | None = None

    def forward(self) -> Any:
        return ops.forward(self.x, self.w, self.o, **self.options)

    def step(self) -> tuple[Any, Any, Any]:
        _, tape = ops.forward(self.x, self.w, self.o, with_tape=True, **self.options)
        out = self.gradients if self.reuse else None
        self.gradients = ops.backward(self.g, self.x, self.w, self.o, tape=tape, out=out, **self.options)
        return self.gradients.x, self.gradients.split_weight, self.gradients.leaf_weight


class DenseTorch:
    """Dense soft trees with autograd: one matrix product for all splits, one for all leaves.

    Samples stand last, so that each level of the trees is a contiguous block in memory, and the scaling of t is part of
    the first product.
    """

    def __init__(self, workload: Workload, activation: str = "smooth_step") -> None:
        x, w, o, g = (torch.from_numpy(array) for array in workload.arrays())
        self.m, self.d, self.k = workload.m, workload.d, workload.k
        self.gamma, self.activation = workload.gamma, activation
        self.x, self.w, self.o = (array.requires_grad_() for array in (x, w, o))
        self.g, self.half = g, torch.tensor(0.5)

    def _forward(self) -> torch.Tensor:
        w = self.w.view(-1, self.w.shape[2])
        if self.activation == "logistic":
            left = torch.sigmoid(w @ self.x.T / self.gamma)
        else:
            v = torch.addmm(self.half, w, self.x.T, alpha=1 / self.gamma).clamp(0, 1)
            left = v * v * torch.sub(3, v, alpha=2)
        left = left.view(self.m, 2**self.d - 1, -1)
        reach = left.new_ones(self.m, 1, left.shape[2])
        for level in range(self.d):
            to_left = reach * left[:, 2**level - 1 : 2 ** (level + 1) - 1]
            reach = torch.stack((to_left, reach - to_left), dim=2).view(self.m, 2 ** (level + 1), -1)
        return reach.view(-1, reach.shape[2]).T @ self.o.view(-1, self.k)

    def forward(self) -> Any:
        with torch.no_grad():
            return self._forward().numpy()

    def step(self) -> tuple[Any, Any, Any]:
        grads = torch.autograd.grad(self._forward(), (self.x, self.w, self.o), self.g)
        grad_x, grad_w, grad_o = (grad.numpy() for grad in grads)
        return grad_x, grad_w, grad_o


class DenseTorchByHand:
    """The same with a backward pass written by hand, in place where possible: as far as dense PyTorch goes on a CPU."""

    def __init__(self, workload: Workload) -> None:
        self.x, self.w, self.o, self.g = (torch.from_numpy(array) for array in workload.arrays())
        self.m, self.d, self.k, self.gamma = workload.m, workload.d, workload.k, workload.gamma
        n, self.nodes, self.leaves = workload.n, 2**workload.d - 1, 2**workload.d
        self.half = torch.tensor(0.5)
        self.reach = torch.ones(self.m, self.nodes + self.leaves, n)
        self.expected = torch.empty_like(self.reach)

    def _levels(self) -> list[tuple[slice, slice, slice]]:
        """Of each level: its nodes, their left children, their right children."""
        first = [2**level - 1 for level in range(self.d + 1)]
        return [(slice(a, b), slice(b, 2 * b + 1, 2), slice(b + 1, 2 * b + 1, 2)) for a, b in itertools.pairwise(first)]

    @torch.no_grad()
    def _forward(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        w = self.w.view(-1, self.w.shape[2])
        v = torch.addmm(self.half, w, self.x.T, alpha=1 / self.gamma).clamp_(0, 1).view(self.m, self.nodes, -1)
        left = torch.sub(3, v, alpha=2).mul_(v).mul_(v)
        for here, below_left, below_right in self._levels():
            torch.mul(self.reach[:, here], left[:, here], out=self.reach[:, below_left])
            torch.sub(self.reach[:, here], self.reach[:, below_left], out=self.reach[:, below_right])
        leaves = self.reach[:, self.nodes :].reshape(self.m * self.leaves, -1)
        return leaves.T @ self.o.view(-1, self.k), v, left

    def forward(self) -> Any:
        return self._forward()[0].numpy()

    @torch.no_grad()
    def step(self) -> tuple[Any, Any, Any]:
        _, v, left = self._forward()
        expected = self.expected
        expected[:, self.nodes :] = (self.o.view(-1, self.k) @ self.g.T).view(self.m, self.leaves, -1)
        grad_t = torch.sub(1, v).mul_(v).mul_(6 / self.gamma).mul_(self.reach[:, : self.nodes])
        for here, below_left, below_right in reversed(self._levels()):
            difference = expected[:, below_left] - expected[:, below_right]
            torch.addcmul(expected[:, below_right], left[:, here], difference, out=expected[:, here])
            grad_t[:, here] *= difference
        flat = grad_t.view(self.m * self.nodes, -1)
        leaves = self.reach[:, self.nodes :].reshape(self.m * self.leaves, -1)
        grad_x = flat.T @ self.w.view(-1, self.w.shape[2])
        grad_w = (flat @ self.x).view(self.w.shape)
        grad_o = (leaves @ self.g).view(self.o.shape)
        return grad_x.numpy(), grad_w.numpy(), grad_o.numpy()


class Literal:
    """The paper's algorithm as it stands: depth first, one dot product a node. C++, for this machine's CPU."""

    library: ctypes.CDLL | None = None

    def __init__(self, workload: Workload) -> None:
        self.x, self.w, self.o, self.g = workload.arrays()
        self.shape: list[Any] = [ctypes.c_int64(v) for v in (workload.n, workload.m, workload.p, workload.k)]
        self.shape += [ctypes.c_int(workload.d), ctypes.c_float(workload.gamma)]
        self.output = np.empty((workload.n, workload.k), np.float32)
        self.lib = self._compiled()
        self.memory = ctypes.c_void_p(self.lib.literal_memory())

    @classmethod
    def _compiled(cls) -> ctypes.CDLL:
        if cls.library is None:
            target = HERE.parent / "build" / "literal.so"
            target.parent.mkdir(exist_ok=True)
            flags = ["-std=c++20", "-O3", "-march=native", "-shared", "-fPIC"]
            subprocess.run([os.environ.get("CXX", "c++"), *flags, HERE / "literal.cc", "-o", target], check=True)
            cls.library = ctypes.CDLL(str(target))
            cls.library.literal_memory.restype = ctypes.c_void_p
        return cls.library

    def _inputs(self) -> list[Any]:
        return [
            self.memory,
            *(array.ctypes.data_as(ctypes.c_void_p) for array in (self.x, self.w, self.o)),
            *self.shape,
        ]

    def _forward(self, with_visits: int) -> Any:
        self.lib.literal_forward(*self._inputs(), with_visits, self.output.ctypes.data_as(ctypes.c_void_p))
        return self.output

    def forward(self) -> Any:
        return self._forward(0)

    def step(self) -> tuple[Any, Any, Any]:
        self._forward(1)
        grads = np.zeros_like(self.x), np.zeros_like(self.w), np.zeros_like(self.o)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (self.g, *grads)]
        self.lib.literal_backward(*self._inputs(), *pointers)
        return grads
