"""The mathematics: arrays in, arrays out; opens no file, starts no thread."""
