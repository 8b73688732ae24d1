"""How families of models write calls of tools: a small class for each."""
