"""Plain typed data, protocols and errors that every room shares: no torch, no network."""
