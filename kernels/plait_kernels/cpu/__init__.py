"""Fast CPU ops in C++: compiled in the background for the machine at hand, loaded with ctypes."""
