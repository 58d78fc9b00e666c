"""The tree ensemble as a Keras 3 layer, on each of Keras's backends.

`TreeEnsemble` goes where any Keras layer goes. On the CPU it runs softwood's native kernels, which compute only what
each sample reaches; on accelerators, under XLA in TensorFlow and on export it is built from ``keras.ops``.
`GammaSchedule` narrows the soft band during ``fit``; `from_tf_trees` takes over the weights of the authors' own layer.
"""

try:
    import keras  # noqa: F401
except ImportError as error:
    raise ImportError("softwood.keras needs Keras 3, which is not installed: pip install 'softwood[keras]'") from error

from softwood.keras.layer import TreeEnsemble
from softwood.keras.schedule import GammaSchedule
from softwood.keras.tf_trees import from_tf_trees

__all__ = ["GammaSchedule", "TreeEnsemble", "from_tf_trees"]
