"""From a name to a model in memory: finding the folder, reading config.json, filling the parameters."""
