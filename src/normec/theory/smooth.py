"""Whether all that a model and its loss do to the parameters is known to be smooth: by a list of operations that are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from normec.models import FlatModel

NAMES = (
    # sums, products and what is linear
    "add sub rsub neg mul div reciprocal square addcmul addcdiv lerp sum mean var var_mean cumsum prod mm bmm addmm addmv addbmm baddbmm"
    " mv dot vdot outer convolution _trilinear _adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool2d avg_pool3d upsample_nearest1d"
    " upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d im2col col2im"
    # functions of one number, wherever they are finite
    " exp expm1 log log2 log10 log1p rsqrt sin cos tanh sinh cosh asinh atan erf erfc sigmoid log_sigmoid_forward softplus silu mish gelu"
    " logaddexp logsumexp sinc celu"
    # of many
    " _softmax _safe_softmax _log_softmax native_dropout _fused_dropout mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell"
    " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_cudnn_attention"
    # losses
    " nll_loss_forward nll_loss2d_forward mse_loss soft_margin_loss binary_cross_entropy_with_logits"
    # what moves numbers and leaves them as they are; where they go to is not a function of the parameters
    " view _unsafe_view _reshape_alias reshape view_as alias as_strided expand permute transpose t unsqueeze squeeze select slice narrow"
    " split split_with_sizes unsafe_split unsafe_chunk unbind unfold diagonal diag_embed flip roll repeat clone copy lift_fresh _to_copy"
    " cat stack constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
    " pixel_shuffle pixel_unshuffle channel_shuffle tril triu index index_select gather embedding index_put index_add scatter_add scatter"
    " masked_select masked_fill where select_scatter slice_scatter zero detach"
)
SMOOTH = frozenset(NAMES.split())
"""Operations, by their names in torch's dispatcher, whose derivatives do not jump where their values are finite."""
EMPTY = frozenset(
    ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_empty", "new_zeros", "new_ones", "new_full")
)
"""Operations that take no more than a tensor's shape."""
GIVEN: dict[str, Callable[[list[Any]], bool]] = {
    "native_layer_norm": lambda given: given[-1] > 0,  # eps
    "native_group_norm": lambda given: given[-1] > 0,
    "_fused_rms_norm": lambda given: given[-1] is None or given[-1] > 0,
    "native_batch_norm": lambda given: given[-1] > 0,
    "_native_batch_norm_legit": lambda given: given[-1] > 0,
    "cudnn_batch_norm": lambda given: given[-1] > 0,
    "pow": lambda given: not isinstance(given[1], Tensor) and given[1] == int(given[1]) and not isinstance(given[0], int | float),
    "elu": lambda given: (given[1:2] or [1])[0] * (given[3:4] or [1])[0] == 1,  # α times the scale of the input
    "huber_loss": lambda given: given[3:4] != [0],
    "smooth_l1_loss": lambda given: given[3:4] != [0],
    "_cudnn_rnn": lambda given: given[6] != 0,  # ReLU
}
"""Operations that are smooth with some of their arguments, and whether they are with these."""
LEAVES = "detach detach_ data.__get__ tolist numpy __array__ __dlpack__ untyped_storage data_ptr register_hook grad_fn.__get__"
ESCAPES = frozenset(LEAVES.split())
"""How numbers leave a tensor unseen by the dispatcher, or in a way (detach) in which torch itself also saves them; and how the way of a
gradient is changed.
"""


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations on what depends on the parameters that are not known to be smooth."""

    def __init__(self, unknown: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unknown = unknown

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not name.startswith("__"):
            name = name.rstrip("_") or name
        if not _depends((args, kwargs)) or name in EMPTY:
            return out
        given = [*args, *[value for key, value in (kwargs or {}).items() if key != "out"]]
        known = GIVEN[name](given) if name in GIVEN else name in SMOOTH
        if not (known and func.namespace == "aten"):
            self.unknown.add(name)
        first = out[0] if isinstance(out, tuple | list) and out else out
        if isinstance(first, Tensor) and not first.is_floating_point():
            self.unknown.add(f"{name} to {first.dtype}".replace("torch.", ""))
        if not torch.is_grad_enabled():
            self.unknown.add("no_grad")
        return out


class _Escapes(TorchFunctionMode):
    """Notes the numbers that depend on the parameters and leave torch."""

    def __init__(self, unknown: set[str]) -> None:
        super().__init__()
        self.unknown = unknown

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__qualname__", "").removeprefix("Tensor.").removeprefix("TensorBase.")
        if getattr(func, "__name__", "") == "__get__":
            name = f"{getattr(func.__self__, '__name__', '')}.__get__"
        if name.rpartition("TensorBase.")[2] in ESCAPES and _depends(args):
            self.unknown.add(name.removesuffix(".__get__"))
        return func(*args, **(kwargs or {}))


def not_known_smooth(model: FlatModel, x: Tensor, samples: tuple[Tensor, Tensor]) -> tuple[float, list[str]]:
    """The loss at parameters x (d,), and the operations on them that are not known to be smooth, by torch's names, on these samples.

    An operation that is not on the list, comparisons and detached numbers among them, is not known to be smooth; and no
    torch.autograd.Function of one's own or of a compiled model is.
    """
    model.enter(x, training=True)
    unknown: set[str] = set()
    with torch.enable_grad(), _Escapes(unknown), _Operations(unknown):
        loss = model.objective(model.module(samples[0]), samples[1])
    ahead: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            unknown.add(type(node).__name__.removesuffix("Backward"))
        ahead += [following for following, _ in node.next_functions]
    return float(loss.detach()), sorted(unknown)


def _depends(given: Any) -> bool:
    """Whether a tensor among arguments, at any depth, depends on the parameters."""
    if isinstance(given, Tensor):
        return given.requires_grad
    if isinstance(given, dict):
        return any(map(_depends, given.values()))
    return isinstance(given, tuple | list) and any(map(_depends, given))
