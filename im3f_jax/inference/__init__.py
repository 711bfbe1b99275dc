"""The run: devices, memory, warm start and the loop over compiled chunks."""
