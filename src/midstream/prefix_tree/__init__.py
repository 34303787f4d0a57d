"""Many token sequences in one forward pass, each shared prefix computed once: the trie, its attention, its cost."""
