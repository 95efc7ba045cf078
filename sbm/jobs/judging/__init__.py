"""What predictions are worth: metrics, confusions, probabilities."""
