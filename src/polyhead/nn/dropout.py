"""Dropout from sixteen random bits a number: on a processor torch's own draws take longer than the product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_LEVELS = 1 << 16


def dropped(values: Tensor, share: float, training: bool = True) -> Tensor:
    """Each number is 0 with probability `share`, rounded to 1/65536, else divided by `1 - share`.

    On a CPU four numbers share one draw of torch's generator; on other devices this is torch's own dropout.
    """
    if not training or not share or values.device.type != "cpu":
        return functional.dropout(values, share, training)
    lost, count = min(round(share * _LEVELS), _LEVELS - 1), values.numel()
    drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = drawn.view(torch.int16)[:count].ge_(lost - _LEVELS // 2).view(values.shape).to(values.dtype)
    return values * kept.mul_(_LEVELS / (_LEVELS - lost))
