"""Networks: small ones by name, any of timm's, and any that is trained already; docs/models.md is the guide."""

from __future__ import annotations

from ipg.models.build import build_model, describe
from ipg.models.head import HEAD_STD, freeze, renew_head
from ipg.models.image_model import ImageModel
from ipg.models.loading import load_model
from ipg.models.normalization import NORMALIZATIONS, Normalization
from ipg.models.small import MODELS, ConvNet, FirstConv2d, SmallNet
from ipg.models.weights import plain_state_dict, save_weights

__all__ = [
    "HEAD_STD",
    "MODELS",
    "NORMALIZATIONS",
    "ConvNet",
    "FirstConv2d",
    "ImageModel",
    "Normalization",
    "SmallNet",
    "build_model",
    "describe",
    "freeze",
    "load_model",
    "plain_state_dict",
    "renew_head",
    "save_weights",
]
