"""Models and what they are worth: files, other tools' files, metrics, probabilities."""

from sbm.models import liblinear as liblinear  # so that Model.load knows its files
