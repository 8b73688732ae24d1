"""Memory behind the arena: slower, larger, and nothing in it is sure to be there when it is asked for."""
