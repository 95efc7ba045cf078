"""Models and what they are worth: files, other tools' files, metrics, probabilities."""
