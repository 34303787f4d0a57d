"""What runs inside the sandbox: the standard library alone, and relative imports, as there is no midstream there."""
