"""Training methods by name, one a file."""

from __future__ import annotations

from ipg.methods.base import Method, Setup
from ipg.methods.cggd import Cggd
from ipg.methods.continuous import Continuous
from ipg.methods.coral import Coral
from ipg.methods.dair import Dair
from ipg.methods.dfr import Dfr
from ipg.methods.dkt import Dkt
from ipg.methods.epg import Epg
from ipg.methods.erm import Erm
from ipg.methods.eva_e import EvaE
from ipg.methods.fishr import Fishr
from ipg.methods.gals import Gals
from ipg.methods.gals_mask import GalsMask
from ipg.methods.groupdro import GroupDro
from ipg.methods.ipg import Ipg
from ipg.methods.irm import Irm
from ipg.methods.joint import Joint
from ipg.methods.jtt import Jtt
from ipg.methods.lff import Lff
from ipg.methods.meta_irm import MetaIrm
from ipg.methods.ncm import Ncm
from ipg.methods.options import parse_options
from ipg.methods.oracle import Oracle
from ipg.methods.pair_augmentation import PairAugmentation
from ipg.methods.pair_contrastive import PairContrastive
from ipg.methods.ridg import Ridg
from ipg.methods.rwg import Rwg
from ipg.methods.shape_only import ShapeOnly
from ipg.methods.subg import Subg
from ipg.methods.vrex import Vrex
from ipg.methods.weighted_joint import WeightedJoint
from ipg.words import did_you_mean

__all__ = ["METHODS", "STUDIED", "Method", "Setup", "method_class", "parse_options"]

METHODS: dict[str, type[Method]] = {
    "erm": Erm,
    "oracle": Oracle,
    "ipg": Ipg,
    "joint": Joint,
    "continuous": Continuous,
    "groupdro": GroupDro,
    "rwg": Rwg,
    "subg": Subg,
    "pair_augmentation": PairAugmentation,
    "pair_contrastive": PairContrastive,
    "joint_weighted": WeightedJoint,
    "ncm": Ncm,
    "dair": Dair,
    "shape_only": ShapeOnly,
    "jtt": Jtt,
    "dfr": Dfr,
    "lff": Lff,
    "eva_e": EvaE,
    "dkt": Dkt,
    "epg": Epg,
    "gals": Gals,
    "gals_mask": GalsMask,
    "vrex": Vrex,
    "irm": Irm,
    "meta_irm": MetaIrm,
    "fishr": Fishr,
    "coral": Coral,
    "ridg": Ridg,
    "cggd": Cggd,
}

STUDIED: dict[str, type[Method]] = {}
"""Methods that only studies know, e.g. ablations; `ipg.experiments` puts them here, and no list shows them."""


def method_class(name: str) -> type[Method]:
    """The method of that name; a ValueError lists those there are."""
    if name not in METHODS and name not in STUDIED:
        hint = did_you_mean(name, METHODS)
        raise ValueError(f"there is no method {name!r}; {f'{hint} T' if hint else 't'}here are {', '.join(METHODS)}")
    return METHODS.get(name) or STUDIED[name]
