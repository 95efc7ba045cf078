"""Models: files, model files of other tools, metrics and probabilities."""

from sbm.models import liblinear as liblinear  # registers its reader for Model.load
