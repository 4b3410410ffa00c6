"""N-gram counts of the train split and of the window: text in, probabilities of the next id out."""
