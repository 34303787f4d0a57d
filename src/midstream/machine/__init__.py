"""What the doctor looks at on this machine: what is installed, where runs go, the sandbox, servers and keys."""
