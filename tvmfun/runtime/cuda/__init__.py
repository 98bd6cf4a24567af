"""The launcher of compiled modules for NVIDIA's GPUs: the driver, devices with streams and memory, graphs, arrays."""
