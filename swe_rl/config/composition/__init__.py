"""This package has the pieces of a composition: trees that are kept, parts of OmegaConf, values by their full keys."""
