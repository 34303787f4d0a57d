"""The part that runs inside the sandbox: it imports the standard library and itself, as midstream is not there."""
