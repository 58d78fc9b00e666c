"""A fitted model: its parts, the prediction program, the compiled predictor, its file, hard trees, importances."""

from softwood.model.container import ModelFileError
from softwood.model.model import Model
from softwood.model.parts import BatchNorm, Head, ModelMember, Trees
from softwood.model.predictor import Predictor
from softwood.model.program import Program

__all__ = ["BatchNorm", "Head", "Model", "ModelFileError", "ModelMember", "Predictor", "Program", "Trees"]
