"""An orchard through the year: trees, harvest and cellar."""
