"""Tools of any server of the Model Context Protocol."""
