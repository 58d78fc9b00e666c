"""The trainer against its oracle: batch norm, dense soft trees and Adam in PyTorch, on the same batches."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from softwood import _core
from softwood.training import Member, Samples, TrainedMember, TrainingConfig, Trees, fit_members
from softwood.training.losses import Loss
from training_cases import CLASSES, labels, parameters, small, start_of, table

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.fixture(autouse=True)
def one_torch_thread():
    """Tensors of a few hundred numbers only suffer from more, and the rest of the machine too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def smooth_step(t: torch.Tensor, gamma: float) -> torch.Tensor:
    v = (t / gamma + 0.5).clamp(0, 1)
    return v * v * (3 - 2 * v)


def dense_output(x, split_weight, split_bias, leaf_weight, gamma):
    """Every leaf of every tree: [n, k]."""
    n_trees, n_leaves, _ = leaf_weight.shape
    t = torch.einsum("np,mip->nmi", x, split_weight)
    left = smooth_step(t if split_bias is None else t + split_bias, gamma)
    reach = torch.ones(len(x), n_trees, 1, dtype=x.dtype)
    for level in range(int(math.log2(n_leaves))):
        s = left[:, :, 2**level - 1 : 2 ** (level + 1) - 1]
        reach = torch.stack([reach * s, reach * (1 - s)], dim=-1).flatten(2)
    return torch.einsum("nml,mlk->nk", reach, leaf_weight)


def row_losses(loss: Loss, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One number per row, from PyTorch's own losses where it has them."""
    if callable(loss.name):
        raise ValueError("write the loss of a callable beside it")
    if loss.name == "cross_entropy":
        return F.cross_entropy(scores, y[:, 0].long(), label_smoothing=loss.label_smoothing, reduction="none")
    if loss.name == "binary_cross_entropy":
        y = y * (1 - loss.label_smoothing) + loss.label_smoothing / 2
        return F.binary_cross_entropy_with_logits(scores, y, reduction="none").mean(1)
    if loss.name == "squared_error":
        return F.mse_loss(scores, y, reduction="none").mean(1)
    if loss.name == "absolute_error":
        return F.l1_loss(scores, y, reduction="none").mean(1)
    if loss.name == "huber":
        return F.huber_loss(scores, y, delta=loss.delta, reduction="none").mean(1)
    if loss.name == "quantile":
        q = torch.tensor(loss.quantiles, dtype=y.dtype)
        d = y[:, :, None] - scores.reshape(len(y), y.shape[1], len(q))
        return torch.maximum(q * d, (q - 1) * d).mean((1, 2))
    if loss.name == "poisson":
        return F.poisson_nll_loss(scores, y, log_input=True, reduction="none").mean(1)
    if loss.name == "gamma":
        return -torch.distributions.Gamma(1.0, torch.exp(-scores)).log_prob(y).mean(1)
    p = loss.power
    return (scores.exp() ** (2 - p) / (2 - p) - y * scores.exp() ** (1 - p) / (1 - p)).mean(1)


def batches(member: Member, config: TrainingConfig):
    """Row numbers of each batch of each epoch, as the trainer takes them."""
    rows = np.arange(len(member.train.x)) if member.train.rows is None else np.asarray(member.train.rows)
    n_batches = -(-len(rows) // config.batch_size)
    order = np.empty(len(rows), np.int64)
    for epoch in range(config.max_epochs):
        _core.shuffled_order(member.seed, epoch, order)
        for b in range(n_batches):
            yield rows[order[b * len(rows) // n_batches : (b + 1) * len(rows) // n_batches]]


def schedule(config: TrainingConfig, step: int, n_steps: int) -> tuple[float, float]:
    """Learning rate and gamma."""
    warmup = math.floor(config.warmup * n_steps)
    if step < warmup:
        rate = config.learning_rate * (step + 1) / warmup
    elif config.schedule == "cosine":
        rate = config.learning_rate * (1 + math.cos(math.pi * (step - warmup) / (n_steps - warmup))) / 2
    else:
        rate = config.learning_rate
    begin, end = config.gamma_window
    share = min(1.0, max(0.0, (step / (n_steps - 1) - begin) / (end - begin)))
    gamma_end = config.gamma if config.gamma_end is None else config.gamma_end
    return rate, config.gamma * (gamma_end / config.gamma) ** share


def train_twin(config: TrainingConfig, member: Member, start: Trees, row_loss=None) -> dict[str, np.ndarray]:
    """Train from `start` and return the parameters after the last step."""
    x, y = torch.from_numpy(member.train.x), torch.from_numpy(np.asarray(member.train.y, dtype=np.float64))
    y = y.reshape(len(y), -1)
    weight = torch.ones(len(x), dtype=x.dtype)
    if member.train.sample_weight is not None:
        weight = torch.from_numpy(member.train.sample_weight.astype(np.float64))
        weight = weight / weight[slice(None) if member.train.rows is None else member.train.rows].mean()
    split_weight = torch.tensor(start.split_weight, requires_grad=True)
    leaf_weight = torch.tensor(start.leaf_weight, requires_grad=True)
    split_bias = None if start.split_bias is None else torch.tensor(start.split_bias, requires_grad=True)
    norm = torch.nn.BatchNorm1d(x.shape[1], eps=config.batch_norm_epsilon, dtype=x.dtype)
    if start.batch_norm is not None:
        norm.weight.data[:] = torch.from_numpy(start.batch_norm.scale)
        norm.bias.data[:] = torch.from_numpy(start.batch_norm.shift)
    others = [*norm.parameters(), *([] if split_bias is None else [split_bias])]
    settings = {"betas": config.betas, "eps": config.epsilon, "lr": 1.0}
    optimizers = [
        torch.optim.Adam([split_weight], weight_decay=config.l2, **settings),
        torch.optim.AdamW([leaf_weight], weight_decay=config.weight_decay, **settings),
        torch.optim.Adam(others, **settings),
    ]
    mask = None if start.feature_mask is None else torch.from_numpy(start.feature_mask)
    steps = list(batches(member, config))
    for step, rows in enumerate(steps):
        rate, gamma = schedule(config, step, len(steps))
        inputs = norm(x[rows]) if config.batch_norm else x[rows]
        scores = dense_output(inputs, split_weight, split_bias, leaf_weight, gamma) + torch.from_numpy(start.offset)
        losses = row_losses(config.loss, scores, y[rows]) if row_loss is None else row_loss(scores, y[rows])
        for optimizer in optimizers:
            optimizer.zero_grad()
        (losses * weight[rows]).mean().backward()
        if mask is not None:
            split_weight.grad *= mask
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        with torch.no_grad():
            split_weight.copy_(split_weight.sign() * (split_weight.abs() - rate * config.l1).clamp(min=0))
    result = {"split_weight": split_weight, "leaf_weight": leaf_weight, "scale": norm.weight, "shift": norm.bias}
    if split_bias is not None:
        result["split_bias"] = split_bias
    return {name: tensor.detach().numpy() for name, tensor in result.items()}


def assert_follows_twin(config: TrainingConfig, member: Member, row_loss=None) -> None:
    start = start_of(config, member)
    expected = train_twin(config, member, start, row_loss)
    (trained,) = fit_members(config, [member])
    assert np.abs(trained.trees.split_weight - start.split_weight).max() > 0.05
    for name, array in parameters(trained.trees).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-9, err_msg=name)


POSITIVE = np.abs(table(seed=1)[:, :2]) + 0.1
LOSSES = {
    "cross_entropy": (CLASSES, labels(table())),
    "cross_entropy smoothed": (Loss("cross_entropy", n_classes=3, label_smoothing=0.1), labels(table())),
    "binary_cross_entropy": (Loss("binary_cross_entropy"), table()[:, 0] > 2),
    "binary_cross_entropy smoothed": (Loss("binary_cross_entropy", label_smoothing=0.2), table()[:, 0] > 2),
    "squared_error": (Loss("squared_error"), table(seed=1)[:, 0]),
    "squared_error, two targets": (Loss("squared_error"), table(seed=1)[:, :2]),
    "absolute_error": (Loss("absolute_error"), table(seed=1)[:, 0]),
    "huber": (Loss("huber", delta=0.7), table(seed=1)[:, 0]),
    "quantile": (Loss("quantile", quantiles=(0.1, 0.5, 0.9)), table(seed=1)[:, 0]),
    "quantile, two targets": (Loss("quantile", quantiles=(0.2, 0.7)), table(seed=1)[:, :2]),
    "poisson": (Loss("poisson"), np.floor(POSITIVE[:, 0])),
    "gamma": (Loss("gamma"), POSITIVE[:, 0]),
    "tweedie": (Loss("tweedie", power=1.3), np.floor(POSITIVE)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_follows_pytorch_step_for_step(name):
    loss, y = LOSSES[name]
    weight = np.random.default_rng(3).uniform(0, 2, len(y))
    assert_follows_twin(small(loss), Member(Samples(table(), y, weight), seed=5))


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": False},
        {"batch_norm": False, "gamma": 8.0},
        {"gamma": 2.0, "gamma_end": 0.3, "gamma_window": (0.2, 0.8)},
        {"schedule": "constant", "warmup": 0.0},
        {"l2": 0.1, "l1": 0.2, "weight_decay": 0.3},
        {"max_features": 0.4},
        {"betas": (0.7, 0.95), "epsilon": 1e-3},
        {"depth": 1},
        {"depth": 6, "init_scale": 0.1},
    ],
    ids=str,
)
def test_each_option_follows_pytorch_step_for_step(changes):
    x = table()
    member = Member(Samples(x, labels(x), rows=np.arange(0, 100, 2)[::-1].copy()), seed=2)
    assert_follows_twin(small(**{"batch_size": 10, **changes}), member)


def test_scale_of_batch_norm_may_pass_through_zero():
    """Near 0 its gradient cannot be had by dividing by it."""
    x = table()
    config = small()
    trees = start_of(config, Member(Samples(x, labels(x))))
    scale = np.array([0.02, -0.02, 0.0, 1e-12, 1.0])
    norm = dataclasses.replace(trees.batch_norm, scale=scale, shift=np.linspace(-1, 1, 5))
    start = TrainedMember(dataclasses.replace(trees, batch_norm=norm), best_epoch=0, best_loss=0.0)
    member = Member(Samples(x, labels(x)), start=start)
    assert_follows_twin(config, member)
    after = fit_members(config, [member])[0].trees.batch_norm.scale
    assert np.any(after * scale < 0), "some scale must have changed its sign"
