"""Says what is wrong with a training, from the files of its run."""
