"""Fitted models as PyTorch modules and back: train on, with any loss and optimiser, what the estimators have learned.

A fitted estimator or its file comes in; out goes an `nn.Module` with the same scores, whose weights PyTorch trains; and
the other way round. Reading tables and turning scores into predictions is left to the model that the module comes from.

Legend: n rows, q base columns, p inputs of the trees, k scores, m trees, d depth.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softwood.estimators import TreeEnsembleClassifier, TreeEnsembleRegressor
from softwood.model.linear_form import linear_form
from softwood.model.model import Model, model_of
from softwood.model.parts import BatchNorm, ModelMember, Trees
from softwood.tabular.encoding.base_columns import Value, read_base
from softwood.tabular.encoding.features import LARGEST_FEATURE, Encoding, FeatureKind
from softwood.tabular.loading import load
from softwood.torch.layer import TreeEnsemble

Fitted = TreeEnsembleClassifier | TreeEnsembleRegressor | Model


def from_model(model: Fitted | str | os.PathLike[str], *, member: int | None = None) -> FittedModel:
    """Make a PyTorch module of a fitted model.

    Parameters
    ----------
    model : estimator, Model or path
        A fitted `TreeEnsembleClassifier` or `TreeEnsembleRegressor`, its `model_`, or a file that `save` wrote.
    member : int, optional
        Take this one of the averaged ensembles only; all of them if None.

    Returns
    -------
    FittedModel
        In evaluation mode, with weights of its own: training it leaves `model` as it was.

    See Also
    --------
    to_model : the inverse.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import load_breast_cancer
    >>> import softwood
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> classifier = softwood.TreeEnsembleClassifier(n_members=2, max_epochs=5, random_state=0).fit(X, y)
    >>> module = softwood.torch.from_model(classifier)
    >>> scores = module(torch.from_numpy(X))
    >>> scores.shape
    torch.Size([569, 1])
    >>> bool(abs(scores[:, 0].detach().numpy() - classifier.decision_function(X)).max() < 1e-4)
    True

    Train it further, and predict with scikit-learn's interface again:

    >>> optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    >>> loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], torch.from_numpy(y).float())
    >>> loss.backward()
    >>> optimizer.step()
    >>> softwood.torch.to_model(module).predict_proba(X).shape
    (569, 2)
    """
    source = load(model) if isinstance(model, (str, os.PathLike)) else model
    return FittedModel(source, member)


def to_model(module: FittedModel) -> Any:
    """Put a module's weights into a copy of the model that it was made from.

    Preprocessing, classes, the scaling of targets, history and hyperparameters are those of the source. Importances are
    computed again if the source still has the rows for it (fitted in this process, importances not yet used);
    otherwise they too are those of the source.

    Parameters
    ----------
    module : FittedModel
        From `from_model`; trained further, or with other `TreeEnsemble` layers put into its members.

    Returns
    -------
    estimator or Model
        What `from_model` was given (an estimator if that was a path): it predicts, explains, exports and saves.
    """
    if not isinstance(module, FittedModel):
        raise TypeError(
            f"module must be a FittedModel, as from_model returns it; got {type(module).__name__}. To use trees of "
            "your own, put them into such a module: module.members[0].trees = trees."
        )
    source = linear_form(model_of(module.source))
    members = [_member_to_model(part, source, i) for i, part in enumerate(module.members)]
    model = replace(source, members=members)
    if source.importance_rows is None:
        model.importances = source.importances
    if isinstance(module.source, Model):
        return model
    estimator = copy.copy(module.source)
    estimator._pieces = None  # moments of the optimiser belong to the old weights
    estimator.model_ = model
    return estimator


class FittedModel(nn.Module):
    """A fitted model in PyTorch: columns of numbers in, raw scores out; made by `from_model`.

    Inside are the scaling of columns, the encodings (`encoders`) and all `members`: batch normalisation where the model
    has it, trees, offsets, and the masks of `max_features`, which keep a split to its features while it is trained. Not
    inside are the reading of tables with categories and dates (`read` does that, outside of autograd) and the head: a
    binary score is the logit of the second class, several scores are logits for softmax (of labels that a row has or
    lacks: one logit each), and those of a regression are on the scale of standardised targets and before any
    exponential link.

    Parameters are the weights of splits and leaves, and scale and shift of batch normalisation; the rest are buffers.
    Lookups, which the splits of default models are made of, become linear splits on ramps and flags. The scores equal
    the model's up to rounding of float32, and of fractions between the knots of lookups. The module can be copied,
    pickled, moved to a device, compiled and exported.

    Attributes
    ----------
    encoders : ModuleDict
        By name of encoding; base columns [n, q] to inputs of the trees [n, p].
    members : ModuleList of FittedMember
        Inputs of the trees to scores [n, k]; what `forward` returns is their mean. ``members[i].trees`` is a
        `TreeEnsemble`, and may be taken out for another network or replaced by one of the same inputs and outputs.
    source : estimator or Model
        What the module was made from; its weights stay what they were.

    **Shape**: input [n, q], output [n, k]. For a table of numbers q is the number of its columns.
    """

    def __init__(self, source: Fitted, member: int | None = None) -> None:
        super().__init__()
        model = linear_form(model_of(source))
        numbers = range(len(model.members)) if member is None else [_check_member(member, len(model.members))]
        chosen = [model.members[i] for i in numbers]
        names = dict.fromkeys(part.encoding for part in chosen)
        self.source = source
        self.encoders = nn.ModuleDict({name: FittedEncoder(model.preprocessor.encodings[name]) for name in names})
        self.members = nn.ModuleList(FittedMember(part) for part in chosen)
        values = [column if isinstance(column, Value) else None for column in model.program.base]
        # Python's numbers, not a buffer: `module.float()` must not round them.
        self._offset = [0.0 if value is None else value.offset for value in values]
        self._unit = [1.0 if value is None else value.unit for value in values]
        self._is_scaled = any(self._offset) or any(unit != 1 for unit in self._unit)
        self.eval()

    def read(self, X: Any) -> Tensor:
        """Turn a table of any kind that `fit` takes into columns of numbers for `forward`, NaN for a missing cell.

        Categories become codes and means of the target, dates become seconds and parts of the calendar. Float64 where
        the model works on differences of large numbers, otherwise float32.

        **Shape**: n rows give [n, q].
        """
        program = model_of(self.source).program
        base = read_base(program.read(X), program.base, program.column_names)
        if self._is_scaled:
            return torch.from_numpy(base.astype(np.float64) * self._unit + self._offset)
        return torch.from_numpy(base.copy())

    def forward(self, x: Tensor) -> Tensor:
        """Return raw scores [n, k] of columns of numbers x [n, q]: those of the table, or what `read` gives."""
        if x.ndim != 2 or x.shape[1] != len(self._offset):
            raise ValueError(
                f"x must have {len(self._offset)} columns of numbers [n, {len(self._offset)}]; got shape "
                f"{tuple(x.shape)}: make it of a table by module.read(table)."
            )
        if self._is_scaled:
            offset, unit = (torch.tensor(v, dtype=torch.float64, device=x.device) for v in (self._offset, self._unit))
            x = (x.double() - offset) / unit
        largest = torch.finfo(torch.float32).max
        base = x.clamp(-largest, largest).float()
        inputs = {name: encoder(base) for name, encoder in self.encoders.items()}
        return torch.stack([member(inputs[member.encoding]) for member in self.members]).mean(dim=0)


class FittedEncoder(nn.Module):
    """The features that a model's trees see, by the definition in `softwood.tabular.encoding.features`, in float32.

    A missing value is NaN; its features are 0 and their gradients are, too.

    **Shape**: base columns [n, q] give inputs [n, p].
    """

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        for name, array in encoding.arrays().items():
            if name != "kind":
                self.register_buffer(name, torch.tensor(array, dtype=torch.int64 if name == "source" else None))
        self.ranges = encoding.ranges()

    def forward(self, base: Tensor) -> Tensor:
        """Encode base columns [n, q] as inputs of the trees [n, p]."""
        x = base[:, self.source]
        pieces, is_missing = [], []
        for kind, chosen in self.ranges.items():
            values = x[:, chosen]
            pieces.append(_feature_function(kind, values, self.start[chosen], self.rate[chosen]))
            is_missing.append(values.isnan() & (kind is not FeatureKind.MISSING))
        features = ((torch.cat(pieces, dim=1) - self.mean) * self.scale).clamp(-LARGEST_FEATURE, LARGEST_FEATURE)
        return features.masked_fill(torch.cat(is_missing, dim=1), 0.0)


def _feature_function(kind: FeatureKind, x: Tensor, start: Tensor, rate: Tensor) -> Tensor:
    """r(x) of features of one kind, as `softwood.tabular.encoding.features` defines it."""
    if kind is FeatureKind.LINEAR:
        return x
    if kind is FeatureKind.LEVEL:
        return (x == start).to(x.dtype)
    if kind is FeatureKind.MISSING:
        return x.isnan().to(x.dtype)
    z = (x - start) * rate
    if kind is FeatureKind.RAMP:
        return z.clamp(0, 1)
    z = z.clamp(-LARGEST_FEATURE, LARGEST_FEATURE)
    return z / (1 + (z / 3).square()).sqrt()


class FittedMember(nn.Module):
    """One ensemble of a fitted model: batch normalisation, trees, offset.

    Attributes
    ----------
    normalise : BatchNorm1d or Identity
    trees : TreeEnsemble
    offset : Tensor [k]
    feature_mask : Tensor [m, 2^d - 1, p] of bool, or None
        Which features a split may use; the weights of others count as 0.

    **Shape**: input [n, p], output [n, k].
    """

    offset: Tensor
    feature_mask: Tensor | None

    def __init__(self, member: ModelMember) -> None:
        super().__init__()
        trees = member.trees
        assert isinstance(trees, Trees)
        self.encoding = member.encoding
        self.normalise = nn.Identity() if trees.batch_norm is None else _batch_norm_to_torch(trees.batch_norm)
        self.n_rows = 0 if trees.batch_norm is None else trees.batch_norm.n_rows
        self.trees = _trees_to_torch(trees)
        self.register_buffer("offset", _tensor(trees.offset))
        self.register_buffer("feature_mask", None if trees.feature_mask is None else _tensor(trees.feature_mask))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores [n, k] of inputs x [n, p]."""
        x = self.normalise(x.to(self.trees.split_weight.dtype))
        if self.feature_mask is None:
            return self.trees(x) + self.offset
        masked = {"split_weight": self.trees.split_weight * self.feature_mask}
        return torch.func.functional_call(self.trees, masked, (x,)) + self.offset


def _check_member(member: int, n_members: int) -> int:
    if isinstance(member, bool) or not isinstance(member, int) or not 0 <= member < n_members:
        raise ValueError(f"member must be a number from 0 to {n_members - 1}, or None for all; got {member!r}.")
    return member


# Arrays to tensors ----------------------------------------------------------------------------------------------------


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))


def _trees_to_torch(trees: Trees) -> TreeEnsemble:
    n_trees, n_leaves, n_outputs = trees.leaf_weight.shape
    layer = TreeEnsemble(
        trees.split_weight.shape[2],
        n_outputs,
        n_trees,
        n_leaves.bit_length() - 1,
        gamma=trees.gamma,
        activation=trees.activation,
        bias=trees.split_bias is not None,
        dtype=_tensor(trees.split_weight[:0]).dtype,
    )
    layer.load_state_dict({name: _tensor(getattr(trees, name)) for name, _ in layer.named_parameters()})
    return layer


def _batch_norm_to_torch(norm: BatchNorm) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(len(norm.mean), eps=norm.epsilon, dtype=_tensor(norm.mean[:0]).dtype)
    arrays = {"running_mean": norm.mean, "running_var": norm.variance, "weight": norm.scale, "bias": norm.shift}
    layer.load_state_dict({name: _tensor(array) for name, array in arrays.items()}, strict=False)
    return layer


# Tensors to arrays ----------------------------------------------------------------------------------------------------


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _member_to_model(member: FittedMember, model: Model, number: int) -> ModelMember:
    trees, mask, normalise = member.trees, member.feature_mask, member.normalise
    _check_trees(trees, mask, model.preprocessor.encodings[member.encoding].n_features, model.n_outputs, number)
    norm = None
    if isinstance(normalise, nn.BatchNorm1d):
        statistics = {"mean": normalise.running_mean, "variance": normalise.running_var}
        arrays = {**statistics, "scale": normalise.weight, "shift": normalise.bias}
        norm = BatchNorm(**{name: _array(t) for name, t in arrays.items()}, epsilon=normalise.eps, n_rows=member.n_rows)
    result = Trees(
        split_weight=_array(trees.split_weight if mask is None else trees.split_weight * mask),
        split_bias=None if trees.split_bias is None else _array(trees.split_bias),
        leaf_weight=_array(trees.leaf_weight),
        offset=_array(member.offset),
        gamma=trees.gamma,
        activation=trees.activation,
        batch_norm=norm,
        feature_mask=None if mask is None else _array(mask),
    )
    return ModelMember(member.encoding, result)


def _check_trees(trees: Any, mask: Tensor | None, n_inputs: int, n_outputs: int, number: int) -> None:
    """Refuse trees that the model could not predict with; they may be the user's own."""
    name = f"members[{number}].trees"
    if not isinstance(trees, TreeEnsemble) or not trees.sum_trees:
        raise TypeError(f"{name} must be a TreeEnsemble with sum_trees=True; got {trees!r}.")
    if (trees.in_features, trees.out_features) != (n_inputs, n_outputs):
        raise ValueError(
            f"{name} must have {n_inputs} inputs and {n_outputs} outputs, as the model has; "
            f"got {trees.in_features} and {trees.out_features}."
        )
    if mask is not None and mask.shape != trees.split_weight.shape:
        raise ValueError(
            f"members[{number}].feature_mask must have the shape {tuple(trees.split_weight.shape)} of split_weight; "
            f"got {tuple(mask.shape)}: set it to None if the splits may use all features."
        )
    for key, weight in trees.named_parameters():
        if weight.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name}.{key} must be float32 or float64; got {weight.dtype}: call module.float() first.")
        if not weight.isfinite().all():
            raise ValueError(f"{name}.{key} must be finite; training has diverged: try a smaller learning rate.")
