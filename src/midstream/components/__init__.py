"""Components: what a recipe names by `type`, midstream's own, those of packages, and your own."""
