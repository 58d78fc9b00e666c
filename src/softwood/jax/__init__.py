"""Tree ensembles in JAX: a function that ``jit``, ``grad``, ``vmap`` and ``lax.scan`` treat like any other.

`tree_ensemble` takes JAX arrays and returns one; `init` draws its parameters. On the CPU softwood's native kernels do
the work, which compute only what each sample reaches; other devices get the same function in plain JAX operations.
"""

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError("softwood.jax needs JAX, which is not installed: pip install 'softwood[jax]'") from error

from softwood.jax.functional import init, tree_ensemble

__all__ = ["init", "tree_ensemble"]
